//! Files of the repository at run time: its scripts start the engines, also for `braid-lab bench`.
//! The search goes from the working directory upwards. A path from compile time would put the
//! checkout's place into the binary, and equal sources would not give equal bytes.

use std::{
    env, io,
    path::{Path, PathBuf},
};

/// Path of the repository, for a process that runs outside of it.
const VARIABLE: &str = "BRAID_SOURCES";

/// Path of `file`, which is relative to the repository's root.
pub fn file(file: &str) -> io::Result<PathBuf> {
    match env::var_os(VARIABLE) {
        Some(root) => below(Path::new(&root), file),
        None => above(&env::current_dir()?, file),
    }
}

fn below(root: &Path, file: &str) -> io::Result<PathBuf> {
    let found = root.join(file);
    if found.is_file() {
        return Ok(found);
    }
    let root = root.display();
    Err(missing(format!(
        "{VARIABLE} is {root}, and there is no {file} in it; for example {VARIABLE}=$HOME/braid"
    )))
}

fn above(from: &Path, file: &str) -> io::Result<PathBuf> {
    let mut candidates = from.ancestors().map(|folder| folder.join(file));
    candidates.find(|path| path.is_file()).ok_or_else(|| {
        let from = from.display();
        missing(format!(
            "no {file} in {from} or above it: run this in Braid's sources, or set {VARIABLE} to where they are"
        ))
    })
}

fn missing(text: String) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCRIPT: &str = "infra/airgap/kafka.sh";

    #[test]
    fn found_from_any_folder_of_the_sources() {
        let here = env::current_dir().unwrap();
        let found = above(&here.join("src"), SCRIPT).unwrap();
        let root = found.ancestors().nth(3).unwrap();
        assert!(root.join("Cargo.lock").is_file(), "{}", root.display());
        assert_eq!(below(root, SCRIPT).unwrap(), found);
    }

    #[test]
    fn elsewhere_the_error_says_what_to_do() {
        let lost = above(Path::new("/"), SCRIPT).unwrap_err();
        assert_eq!(lost.kind(), io::ErrorKind::NotFound);
        assert!(lost.to_string().contains(VARIABLE), "{lost}");
        let wrong = below(Path::new("/nowhere"), SCRIPT).unwrap_err();
        assert!(wrong.to_string().contains("/nowhere"), "{wrong}");
    }
}
