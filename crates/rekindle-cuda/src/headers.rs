//! The headers that kernels need, and the packages that contain them.

use std::{fs, path::Path};

use crate::Version;

/// A part of CUDA with its own package.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Part {
    /// The runtime's headers, with the types of half precision.
    Runtime,
    /// The headers of the compiler's own runtime: tensor cores.
    Crt,
    /// CUDA's C++ core libraries: barriers, asynchronous copies.
    Cccl,
    /// The run-time compiler.
    Nvrtc,
}

impl Part {
    /// The parts that are headers.
    pub(crate) const HEADERS: [Self; 3] = [Self::Runtime, Self::Crt, Self::Cccl];

    /// Files below `include`; any one of them shows that the part is installed.
    fn files(self) -> &'static [&'static str] {
        match self {
            Self::Runtime => &["cuda_fp16.h"],
            Self::Crt => &["crt/mma.h"],
            Self::Cccl => &["cccl/cuda/barrier", "cuda/barrier"],
            Self::Nvrtc => &["nvrtc.h"],
        }
    }

    /// Whether the part's headers are in a folder `include`.
    pub(crate) fn is_in(self, include: &Path) -> bool {
        self.files().iter().any(|file| include.join(file).is_file())
    }

    /// Its name among Debian's and Ubuntu's packages (NVIDIA's repository).
    #[must_use]
    pub fn apt(self, version: Version) -> String {
        let name = match self {
            Self::Runtime => "cuda-cudart-dev",
            Self::Crt => "cuda-crt",
            Self::Cccl => "cuda-cccl",
            Self::Nvrtc => "cuda-nvrtc",
        };
        format!("{name}-{}-{}", version.major, version.minor)
    }

    /// Its name among pip's packages, with its version.
    #[must_use]
    pub fn pip(self, version: Version) -> String {
        let (name, older) = match self {
            Self::Runtime => ("nvidia-cuda-runtime", "nvidia-cuda-runtime"),
            Self::Crt => ("nvidia-cuda-crt", "nvidia-cuda-nvcc"),
            Self::Cccl => ("nvidia-cuda-cccl", "nvidia-cuda-cccl"),
            Self::Nvrtc => ("nvidia-cuda-nvrtc", "nvidia-cuda-nvrtc"),
        };
        match version.major {
            ..13 => format!("{older}-cu{}=={version}.*", version.major),
            13.. => format!("{name}=={version}.*"),
        }
    }
}

/// How to install parts of CUDA of a version.
pub(crate) fn install(parts: &[Part], version: Version) -> String {
    let list = |name: &dyn Fn(Part) -> String| {
        let names = parts.iter().map(|&part| name(part));
        names.collect::<Vec<_>>().join(" ")
    };
    format!(
        "`apt install {}` (NVIDIA's repository) or `pip install {}`",
        list(&|part| part.apt(version)),
        list(&|part| format!("'{}'", part.pip(version)))
    )
}

/// The version of CUDA whose headers are in a folder `include`.
#[must_use]
pub fn version(include: &Path) -> Option<Version> {
    let text = fs::read_to_string(include.join("cuda.h")).ok()?;
    let number = text
        .lines()
        .find_map(|line| line.strip_prefix("#define CUDA_VERSION "))?;
    Some(Version::from_number(number.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_have_the_names_of_their_version() {
        let (new, old) = (Version::from_number(13000), Version::from_number(12040));
        assert_eq!(
            install(&[Part::Crt, Part::Cccl], new),
            "`apt install cuda-crt-13-0 cuda-cccl-13-0` (NVIDIA's repository) or \
             `pip install 'nvidia-cuda-crt==13.0.*' 'nvidia-cuda-cccl==13.0.*'`"
        );
        assert_eq!(Part::Crt.pip(old), "nvidia-cuda-nvcc-cu12==12.4.*");
        assert_eq!(Part::Nvrtc.apt(old), "cuda-nvrtc-12-4");
    }
}
