//! Profiles on disk: what was measured once need not be measured again.
//!
//! A file holds one profile and the key that it was measured under: a line of JSON with the key and what the chain's
//! terms cannot say, then the chain as chain files have it. Its name is a hash of the key; the key itself is
//! compared when the file is read, so a collision, a file that is half written or one of another version is no more
//! than a profile that is not there.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rekindle_plan::{Bytes, Chain, Seconds};
use serde::{Deserialize, Serialize};

use rekindle::profile::{Holds, Measured};

const FORMAT: &str = "rekindle-profile/3";

/// A profile as it is kept: the chain's fixed bytes without what the run itself holds.
#[derive(Debug, Clone, PartialEq)]
pub struct StoredProfile {
    /// What was measured.
    pub measured: Measured,
    /// What kernels allocated in their first runs and keep: scratch for each thread.
    pub kernel_bytes: Bytes,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    format: String,
    key: String,
    kernel_bytes: Bytes,
    holds: Vec<Holds>,
    backward_call_s: Seconds,
}

/// A folder of profiles.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ProfileStore {
    /// The folder; it is made when the first profile is kept.
    pub folder: PathBuf,
    /// Whether profiles that are there are measured again all the same.
    pub fresh: bool,
}

impl ProfileStore {
    /// The profile of this key, unless there is none or a fresh one is wanted.
    #[must_use]
    pub fn find(&self, key: &str) -> Option<StoredProfile> {
        if self.fresh {
            return None;
        }
        let text = fs::read_to_string(self.path(key)).ok()?;
        let (header, chain) = text.split_once('\n')?;
        let file: Header = serde_json::from_str(header).ok()?;
        if file.format != FORMAT || file.key != key {
            return None;
        }
        let chain = Chain::from_json(chain).ok()?;
        let fits = file.holds.len() == chain.stages.len();
        fits.then_some(StoredProfile {
            measured: Measured {
                chain,
                holds: file.holds,
                backward_call_s: file.backward_call_s,
            },
            kernel_bytes: file.kernel_bytes,
        })
    }

    /// Keeps a profile.
    ///
    /// # Errors
    ///
    /// What the system refused. A profile that cannot be kept is merely measured again.
    pub fn keep(&self, key: &str, profile: &StoredProfile) -> io::Result<()> {
        let chain = profile.measured.chain.to_json().map_err(io::Error::other)?;
        let header = Header {
            format: FORMAT.into(),
            key: key.into(),
            kernel_bytes: profile.kernel_bytes,
            holds: profile.measured.holds.clone(),
            backward_call_s: profile.measured.backward_call_s,
        };
        let mut text = serde_json::to_string(&header)?;
        text.push('\n');
        text.push_str(&chain);
        fs::create_dir_all(&self.folder)?;
        let path = self.path(key);
        // Two processes may measure the same model at once.
        let beside = path.with_extension(format!("{}.new", std::process::id()));
        let kept = fs::write(&beside, text).and_then(|()| fs::rename(&beside, &path));
        if kept.is_err() {
            let _ = fs::remove_file(&beside);
        }
        kept
    }

    fn path(&self, key: &str) -> PathBuf {
        Path::new(&self.folder).join(format!("{:08x}.json", crc32fast::hash(key.as_bytes())))
    }
}

#[cfg(test)]
#[expect(clippy::unwrap_used, reason = "a failed unwrap fails the test")]
mod tests {
    use rekindle_plan::{LossCost, OptimizerCost, Stage};

    use rekindle::profile::OutputHold;

    use super::*;

    fn profile() -> StoredProfile {
        StoredProfile {
            measured: Measured {
                chain: Chain {
                    input_bytes: Bytes(3),
                    input_grad: false,
                    fixed_bytes: Bytes(5),
                    stages: vec![Stage {
                        name: "linear 0".into(),
                        saved_bytes: Bytes(7),
                        output_bytes: Bytes(7),
                        ..Stage::default()
                    }],
                    loss: LossCost::default(),
                    optimizer: OptimizerCost::default(),
                },
                holds: vec![Holds {
                    input: true,
                    outputs: vec![OutputHold {
                        by_own_graph: false,
                        released_backward_temp_bytes: Bytes(13),
                    }],
                }],
                backward_call_s: Seconds(0.25),
            },
            kernel_bytes: Bytes(11),
        }
    }

    #[test]
    fn a_profile_comes_back_for_its_key_alone_and_not_when_a_fresh_one_is_wanted() {
        let folder = tempfile::tempdir().unwrap();
        let mut store = ProfileStore {
            folder: folder.path().join("new"),
            fresh: false,
        };
        assert_eq!(store.find("model a"), None);
        store.keep("model a", &profile()).unwrap();
        assert_eq!(store.find("model a"), Some(profile()));
        assert_eq!(store.find("model b"), None);
        store.fresh = true;
        assert_eq!(store.find("model a"), None);
    }

    #[test]
    fn a_damaged_file_is_no_profile() {
        let folder = tempfile::tempdir().unwrap();
        let store = ProfileStore {
            folder: folder.path().to_owned(),
            fresh: false,
        };
        store.keep("model a", &profile()).unwrap();
        let path = store.path("model a");
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, &text[..text.len() / 2]).unwrap();
        assert_eq!(store.find("model a"), None);
        // The name fits, the key inside does not.
        fs::write(&path, text.replace("model a", "model b")).unwrap();
        assert_eq!(store.find("model a"), None);
    }
}
