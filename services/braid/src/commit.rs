//! The commit of a checkout, read from the files of git. A part of the build script.

use std::fs;
use std::path::{Path, PathBuf};

/// Digits of a commit that are shown.
pub const DIGITS: usize = 12;

pub struct Head {
    pub commit: String,
    /// Files that change with the commit.
    pub files: Vec<PathBuf>,
}

/// `None`: `root` is no checkout, or one without a commit.
pub fn head(root: &Path) -> Option<Head> {
    let git = root.join(".git");
    // A linked working tree has a file with the folder of its own HEAD.
    let own = match fs::read_to_string(&git) {
        Ok(text) => root.join(text.strip_prefix("gitdir:")?.trim()),
        Err(_) => git,
    };
    let common = match fs::read_to_string(own.join("commondir")) {
        Ok(text) => own.join(text.trim()),
        Err(_) => own.clone(),
    };
    let file = own.join("HEAD");
    let text = fs::read_to_string(&file).ok()?;
    let mut files = vec![file];
    let commit = match text.trim().strip_prefix("ref: ") {
        None => text.trim().to_owned(),
        Some(name) => {
            let packed = common.join("packed-refs");
            let loose = common.join(name);
            let commit = fs::read_to_string(&loose).ok().or_else(|| {
                let packed = fs::read_to_string(&packed).ok()?;
                let mut lines = packed.lines().filter_map(|line| line.split_once(' '));
                let (commit, _) = lines.find(|(_, of)| *of == name)?;
                Some(commit.to_owned())
            });
            files.extend([loose, packed]);
            commit?.trim().to_owned()
        }
    };
    let is_commit = commit.len() >= DIGITS && commit.bytes().all(|it| it.is_ascii_hexdigit());
    is_commit.then_some(Head { commit, files })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const FIRST: &str = "1111111111111111111111111111111111111111";
    const SECOND: &str = "2222222222222222222222222222222222222222";

    fn put(root: &Path, name: &str, text: &str) {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn commit(root: &Path) -> Option<String> {
        head(root).map(|it| it.commit)
    }

    #[test]
    fn a_branch_a_packed_branch_a_bare_commit_and_a_linked_tree_are_read() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path();
        assert_eq!(commit(root), None, "an archive of the sources");
        put(root, ".git/HEAD", "ref: refs/heads/main\n");
        assert_eq!(commit(root), None, "nothing is committed");
        let packed = format!("# pack-refs with: peeled\n{FIRST} refs/heads/main\n^{SECOND}\n");
        put(root, ".git/packed-refs", &packed);
        assert_eq!(commit(root).as_deref(), Some(FIRST));
        put(root, ".git/refs/heads/main", &format!("{SECOND}\n"));
        assert_eq!(commit(root).as_deref(), Some(SECOND), "it is newer");
        let files = head(root).unwrap().files;
        assert!(
            files.contains(&root.join(".git/refs/heads/main")),
            "{files:?}"
        );
        let linked = root.join("linked");
        put(&linked, ".git", "gitdir: ../.git/worktrees/linked\n");
        put(root, ".git/worktrees/linked/commondir", "../..\n");
        put(root, ".git/worktrees/linked/HEAD", "ref: refs/heads/main\n");
        assert_eq!(commit(&linked).as_deref(), Some(SECOND));
        put(root, ".git/HEAD", &format!("{FIRST}\n"));
        assert_eq!(commit(root).as_deref(), Some(FIRST));
        put(root, ".git/HEAD", "\x1b[2J not a commit\n");
        assert_eq!(commit(root), None);
    }
}
