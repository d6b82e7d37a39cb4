//! Files and folders of health data that only their owner may read, whatever the umask says: files 0600, folders 0700.
//!
//! What an older version left open is mended when it is opened. Only what belongs to this process's user is changed, and a folder only
//! when everything in it does: a folder that is shared with others, such as `/tmp` or a mounted volume, keeps its mode. The files in it
//! are private all the same.

use std::{
    fs::{self, DirBuilder, Metadata, OpenOptions, Permissions},
    io,
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Bits of everybody but the owner.
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// To open files with; one that is created is private.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Makes a private file, empty, unless it is there; then its mode is mended. For libraries that open a file by its name.
pub fn file(path: &Path) -> io::Result<()> {
    options()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .and_then(|()| mend_file(path))
}

/// Makes a file private if it is there and belongs to this user.
pub fn mend_file(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if found.is_file() && is_open(&found) && is_own(&found) {
        fs::set_permissions(path, Permissions::from_mode(FILE_MODE))?;
        tracing::info!(path = %path.display(), "the file was readable by others; mended");
    }
    Ok(())
}

/// Makes a private folder, with those above it that are missing; one that is there is mended if that harms nobody.
pub fn folder(path: &Path) -> io::Result<()> {
    DirBuilder::new()
        .recursive(true)
        .mode(FOLDER_MODE)
        .create(path)?;
    let found = fs::metadata(path)?;
    if !is_open(&found) {
        return Ok(());
    }
    if is_own(&found) && found.mode() & STICKY == 0 && is_ours_alone(path)? {
        fs::set_permissions(path, Permissions::from_mode(FOLDER_MODE))?;
        tracing::info!(path = %path.display(), "the folder was open to others; mended");
    } else {
        tracing::info!(
            path = %path.display(),
            "the folder is shared with others and keeps its mode; the files in it are private"
        );
    }
    Ok(())
}

/// The same, and every file directly within is mended.
pub fn folder_of_files(path: &Path) -> io::Result<()> {
    folder(path)?;
    for entry in fs::read_dir(path)? {
        mend_file(&entry?.path())?;
    }
    Ok(())
}

fn is_open(found: &Metadata) -> bool {
    found.mode() & OTHERS != 0
}

fn is_own(found: &Metadata) -> bool {
    found.uid() == rustix::process::geteuid().as_raw()
}

/// Whether nothing in the folder belongs to somebody else, and it is not the root of a file system that others live on.
fn is_ours_alone(path: &Path) -> io::Result<bool> {
    if path.canonicalize()?.parent().is_none() {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        // One that is removed meanwhile says nothing.
        if let Ok(found) = entry?.metadata()
            && !is_own(&found)
        {
            return Ok(false);
        }
    }
    Ok(true)
}
