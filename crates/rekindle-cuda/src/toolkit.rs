//! Finds CUDA's headers and NVRTC.

use std::{
    env,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::OnceLock,
};

use crate::Part;

/// A folder whose `include` holds CUDA's headers, and the libraries that belong to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Toolkit {
    /// The folder that `CUDA_PATH` names.
    pub home: PathBuf,
    /// The folder of its NVRTC, if it has one.
    pub libraries: Option<PathBuf>,
}

/// Finds the toolkit and sets `CUDA_PATH`, which the CUDA backend reads. Call it first in `main`: the environment may
/// only be changed while the process has a single thread; otherwise it is not changed.
pub fn prepare() {
    if env::var_os("CUDA_PATH").is_some() {
        return;
    }
    if let Some(toolkit) = toolkit()
        && !toolkit.is_known_to_the_backend()
        && single_threaded()
    {
        // SAFETY: there is no other thread that could read the environment at the same time.
        unsafe { env::set_var("CUDA_PATH", &toolkit.home) };
    }
}

fn single_threaded() -> bool {
    fs::read_dir("/proc/self/task").is_ok_and(|threads| threads.count() == 1)
}

/// The toolkit: the one named by `CUDA_PATH` or `CUDA_HOME`, else the first of the usual locations, conda and pip's
/// wheels with all headers, else the first with any.
pub fn toolkit() -> Option<&'static Toolkit> {
    static FOUND: OnceLock<Option<Toolkit>> = OnceLock::new();
    let found = FOUND.get_or_init(|| {
        let search = Search {
            variable: &|name| env::var_os(name).filter(|value| !value.is_empty()),
            root: Path::new("/"),
            cache: dirs::cache_dir(),
        };
        search.find()
    });
    found.as_ref()
}

impl Toolkit {
    /// Whether the CUDA backend looks for headers here: in `CUDA_PATH`, else in the first existing one of three folders
    /// (cubecl-cuda 0.11, `install::cuda_path`).
    pub(crate) fn is_known_to_the_backend(&self) -> bool {
        let looked_in = match env::var_os("CUDA_PATH") {
            Some(path) => Some(PathBuf::from(path)),
            None => ["/usr/local/cuda", "/opt/cuda"]
                .map(PathBuf::from)
                .into_iter()
                .find(|folder| folder.exists())
                .or_else(|| Path::new("/usr/bin/nvcc").exists().then(|| "/usr".into())),
        };
        looked_in.is_some_and(|folder| folder == self.home)
    }

    fn at(home: PathBuf) -> Self {
        let folders = [
            "lib64",
            "lib",
            "targets/x86_64-linux/lib",
            "targets/sbsa-linux/lib",
        ];
        let multiarch = format!("lib/{}-linux-gnu", env::consts::ARCH);
        let folders = folders.into_iter().chain([multiarch.as_str(), "../../lib"]);
        let mut folders = folders.map(|folder| home.join(folder));
        let libraries = folders.find(|folder| newest(folder, "libnvrtc.so").is_some());
        Self { home, libraries }
    }

    /// The parts whose headers are missing.
    pub(crate) fn missing(&self) -> Vec<Part> {
        let include = self.home.join("include");
        let parts = Part::HEADERS.into_iter();
        parts.filter(|part| !part.is_in(&include)).collect()
    }
}

/// The machine's environment for a search.
struct Search<'a> {
    variable: &'a dyn Fn(&str) -> Option<OsString>,
    root: &'a Path,
    /// The location for a folder of links, for wheels with separate header folders.
    cache: Option<PathBuf>,
}

impl Search<'_> {
    fn find(&self) -> Option<Toolkit> {
        for name in ["CUDA_PATH", "CUDA_HOME"] {
            if let Some(home) = (self.variable)(name) {
                return Some(Toolkit::at(home.into()));
            }
        }
        let mut best = None;
        let mut least = Part::HEADERS.len();
        for toolkit in self.system().chain(self.conda()).chain(self.wheels()) {
            let missing = toolkit.missing().len();
            if missing < least {
                least = missing;
                best = Some(toolkit);
            }
            if missing == 0 {
                break;
            }
        }
        best
    }

    fn system(&self) -> impl Iterator<Item = Toolkit> {
        let usual = ["usr/local/cuda", "opt/cuda", "usr"];
        let mut homes: Vec<PathBuf> = usual.map(|home| self.root.join(home)).to_vec();
        homes.extend(versions(&self.root.join("usr/local"), "cuda-"));
        homes.into_iter().map(Toolkit::at)
    }

    fn conda(&self) -> impl Iterator<Item = Toolkit> {
        let prefix = (self.variable)("CONDA_PREFIX").map(PathBuf::from);
        let homes = prefix.into_iter().flat_map(|prefix| {
            let targets = versions(&prefix.join("targets"), "");
            targets.into_iter().chain([prefix])
        });
        homes.map(Toolkit::at)
    }

    fn wheels(&self) -> impl Iterator<Item = Toolkit> {
        let packages = self.python_packages().into_iter();
        packages.flat_map(|packages| {
            let nvidia = packages.join("nvidia");
            // CUDA 13's wheels share a folder; older wheels have separate ones.
            let mut homes = versions(&nvidia, "cu1");
            homes.extend(self.linked(&nvidia));
            let toolkits = homes.into_iter().map(Toolkit::at);
            let toolkits = toolkits.map(move |toolkit| Toolkit {
                libraries: toolkit.libraries.or_else(|| {
                    let folder = nvidia.join("cuda_nvrtc/lib");
                    folder.is_dir().then_some(folder)
                }),
                ..toolkit
            });
            toolkits.collect::<Vec<_>>()
        })
    }

    /// Folders of Python's packages: of the environment, of the `python3` that the shell finds, of the user, of the system.
    fn python_packages(&self) -> Vec<PathBuf> {
        let mut prefixes: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"]
            .iter()
            .filter_map(|name| Some((self.variable)(name)?.into()))
            .collect();
        if let Some(path) = (self.variable)("PATH") {
            let found = env::split_paths(&path).find(|folder| folder.join("python3").is_file());
            // A link's folder and its target's.
            let python = found.map(|folder| folder.join("python3"));
            let target = python
                .as_deref()
                .and_then(|python| python.canonicalize().ok());
            let programs = python.into_iter().chain(target);
            prefixes.extend(programs.filter_map(|python| Some(python.parent()?.parent()?.into())));
        }
        prefixes.extend((self.variable)("HOME").map(|home| Path::new(&home).join(".local")));
        prefixes.extend(["usr/local", "usr"].map(|prefix| self.root.join(prefix)));
        let mut packages = Vec::new();
        for prefix in prefixes {
            for python in versions(&prefix.join("lib"), "python3") {
                for folder in ["site-packages", "dist-packages"] {
                    let folder = python.join(folder);
                    if folder.join("nvidia").is_dir() && !packages.contains(&folder) {
                        packages.push(folder);
                    }
                }
            }
        }
        packages
    }

    /// A folder of links to the headers of wheels that have a folder each.
    fn linked(&self, nvidia: &Path) -> Option<PathBuf> {
        let wheels = ["cuda_runtime", "cuda_nvcc", "cuda_nvrtc", "cuda_cccl"];
        let folders = wheels.map(|wheel| nvidia.join(wheel).join("include"));
        if !folders[0].is_dir() {
            return None;
        }
        let name = nvidia.to_string_lossy().replace('/', "-");
        let home = self.cache.as_ref()?.join("rekindle/cuda").join(name);
        let include = home.join("include");
        fs::create_dir_all(&include).ok()?;
        let entries = folders
            .iter()
            .filter_map(|folder| fs::read_dir(folder).ok());
        for entry in entries.flatten().flatten() {
            let link = include.join(entry.file_name());
            if fs::read_link(&link).is_ok_and(|target| target == entry.path()) {
                continue;
            }
            // What cannot be linked is reported as missing.
            let _ = fs::remove_file(&link);
            #[cfg(unix)]
            let _ = std::os::unix::fs::symlink(entry.path(), &link);
            #[cfg(not(unix))]
            let _ = fs::copy(entry.path(), &link);
        }
        Some(home)
    }
}

/// Entries of a folder whose names are `start` and a version, the highest version first.
fn versions(folder: &Path, start: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut named: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| {
            let name = entry.file_name();
            let version = name.to_str()?.strip_prefix(start)?;
            let numbers = version.split('.').filter_map(|part| part.parse().ok());
            Some((numbers.collect(), entry.path()))
        })
        .collect();
    named.sort_by(|one, other| other.cmp(one));
    named.into_iter().map(|(_, path)| path).collect()
}

/// The newest file `name` or `name.N` in a folder.
pub(crate) fn newest(folder: &Path, name: &str) -> Option<PathBuf> {
    versions(folder, name).into_iter().next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 3] = ["cuda_fp16.h", "crt/mma.h", "cccl/cuda/barrier"];

    /// A machine in a folder.
    struct Machine {
        root: tempfile::TempDir,
        variables: Vec<(&'static str, PathBuf)>,
    }

    impl Machine {
        fn new() -> Self {
            Self {
                root: tempfile::tempdir().expect("a folder"),
                variables: Vec::new(),
            }
        }

        fn path(&self, path: &str) -> PathBuf {
            self.root.path().join(path)
        }

        fn file(&self, path: &str) -> &Self {
            let path = self.path(path);
            fs::create_dir_all(path.parent().expect("a parent")).expect("a folder");
            fs::write(path, "").expect("a file");
            self
        }

        fn headers(&self, home: &str, headers: &[&str]) -> &Self {
            for header in headers {
                self.file(&format!("{home}/include/{header}"));
            }
            self
        }

        fn find(&self) -> Option<Toolkit> {
            let variable = |name: &str| {
                let mut set = self.variables.iter();
                set.find(|(set, _)| *set == name)
                    .map(|(_, value)| value.into())
            };
            let search = Search {
                variable: &variable,
                root: self.root.path(),
                cache: Some(self.path("cache")),
            };
            search.find()
        }
    }

    #[test]
    fn variables_come_before_all_else() {
        let mut machine = Machine::new();
        assert_eq!(machine.find(), None);
        machine.headers("usr/local/cuda", &ALL);
        machine.variables.push(("CUDA_HOME", machine.path("mine")));
        let found = machine.find().expect("a toolkit");
        assert_eq!(found.home, machine.path("mine"));
    }

    #[test]
    fn the_first_toolkit_with_all_headers_is_taken_the_newest_first() {
        let machine = Machine::new();
        machine.headers("usr/local/cuda", &ALL[..1]);
        assert_eq!(
            machine.find().map(|found| found.home),
            Some(machine.path("usr/local/cuda"))
        );
        machine
            .headers("usr/local/cuda-12.9", &ALL)
            .headers("usr/local/cuda-13.0", &ALL)
            .file("usr/local/cuda-13.0/lib64/libnvrtc.so.13");
        let found = machine.find().expect("a toolkit");
        assert_eq!(found.home, machine.path("usr/local/cuda-13.0"));
        assert_eq!(
            found.libraries,
            Some(machine.path("usr/local/cuda-13.0/lib64"))
        );
    }

    #[test]
    fn condas_headers_are_below_its_targets() {
        let mut machine = Machine::new();
        machine
            .variables
            .push(("CONDA_PREFIX", machine.path("env")));
        machine
            .headers("env/targets/x86_64-linux", &ALL)
            .file("env/lib/libnvrtc.so.12");
        let found = machine.find().expect("a toolkit");
        assert_eq!(found.home, machine.path("env/targets/x86_64-linux"));
        let libraries = found.libraries.expect("libraries");
        assert_eq!(
            libraries.canonicalize().ok(),
            machine.path("env/lib").canonicalize().ok()
        );
    }

    #[test]
    fn wheels_are_found_in_both_layouts() {
        let mut machine = Machine::new();
        machine
            .variables
            .push(("VIRTUAL_ENV", machine.path("venv")));
        let older = "venv/lib/python3.12/site-packages/nvidia";
        machine
            .headers(&format!("{older}/cuda_runtime"), &ALL[..1])
            .headers(&format!("{older}/cuda_nvcc"), &ALL[1..2])
            .headers(&format!("{older}/cuda_cccl"), &["cuda/barrier"])
            .file(&format!("{older}/cuda_nvrtc/lib/libnvrtc.so.12"));
        let found = machine.find().expect("a toolkit");
        assert!(found.missing().is_empty());
        assert_eq!(
            found.libraries,
            Some(machine.path(&format!("{older}/cuda_nvrtc/lib")))
        );
        // Links that are there are kept.
        assert_eq!(machine.find(), Some(found));
        let newer = format!("{older}/cu13");
        machine
            .headers(&newer, &ALL)
            .file(&format!("{newer}/lib/libnvrtc.so.13"));
        let found = machine.find().expect("a toolkit");
        assert_eq!(found.home, machine.path(&newer));
        assert_eq!(found.libraries, Some(machine.path(&format!("{newer}/lib"))));
    }

    #[test]
    fn wheels_of_the_python_on_the_path_are_found() {
        let mut machine = Machine::new();
        machine.file("python/bin/python3");
        machine.variables.push(("PATH", machine.path("python/bin")));
        machine.headers("python/lib/python3.11/site-packages/nvidia/cu13", &ALL);
        let found = machine.find().expect("a toolkit");
        assert_eq!(
            found.home,
            machine.path("python/lib/python3.11/site-packages/nvidia/cu13")
        );
    }

    #[test]
    fn the_newest_library_of_a_name_is_taken() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path();
        assert_eq!(newest(path, "libnvrtc.so"), None);
        for file in [
            "libnvrtc.so.9",
            "libnvrtc.so.13",
            "libnvrtc.so.12",
            "libnvrtc-builtins.so.14.0",
            "libnvrtc.alt.so.14",
            "libnvrtc.so",
        ] {
            fs::write(path.join(file), "").expect("a file");
        }
        let found = newest(path, "libnvrtc.so");
        assert_eq!(found, Some(path.join("libnvrtc.so.13")));
    }
}
