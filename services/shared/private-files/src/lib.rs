//! Files and folders of health data that only their owner may read, independent of the umask: files
//! 0600, folders 0700.
//!
//! Wider modes of an older version are corrected when a file is opened. Only files of this
//! process's user are changed, and a folder only if everything in it belongs to that user. So a
//! shared folder, such as `/tmp` or a mounted volume, keeps its mode, but the files in it are
//! private.

use std::{
    fs::{self, DirBuilder, File, Metadata, OpenOptions, Permissions},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt},
    path::Path,
};

const FILE_MODE: u32 = 0o600;
const FOLDER_MODE: u32 = 0o700;
/// Permission bits of all users except the owner.
const OTHERS: u32 = 0o077;
const STICKY: u32 = 0o1000;

/// Options to open files with; a created file is private.
pub fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.mode(FILE_MODE);
    options
}

/// Creates a private, empty file if it is missing, or corrects its mode. For libraries that open a
/// file by its name.
pub fn file(path: &Path) -> io::Result<()> {
    options()
        .create(true)
        .append(true)
        .open(path)
        .map(drop)
        .and_then(|()| mend_file(path))
}

/// Replaces a file by a private one. Atomic, so a reader never sees a part, and durable when it
/// returns. Blocks on the disk.
pub fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let mut options = options();
    let mut file = options
        .write(true)
        .create(true)
        .truncate(true)
        .open(&beside)?;
    file.write_all(bytes)?;
    // Or the rename could survive a loss of power, and the content not.
    file.sync_all()?;
    fs::rename(&beside, path)?;
    let folder = path.parent().filter(|it| !it.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

/// Makes a file private if it exists and belongs to this user.
pub fn mend_file(path: &Path) -> io::Result<()> {
    let found = match fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if found.is_file() && is_open(&found) && is_own(&found) {
        fs::set_permissions(path, Permissions::from_mode(FILE_MODE))?;
        tracing::info!(path = %path.display(), "the file was readable by others; corrected");
    }
    Ok(())
}

/// Creates a private folder with its missing parents. An existing folder is corrected if it is not
/// shared.
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
        tracing::info!(path = %path.display(), "the folder was open to others; corrected");
    } else {
        tracing::info!(
            path = %path.display(),
            "the folder is shared with others and keeps its mode; the files in it are private"
        );
    }
    Ok(())
}

/// The same, and corrects every file directly within.
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

/// Whether everything in the folder belongs to this user and the folder is not the root of a shared
/// file system.
fn is_ours_alone(path: &Path) -> io::Result<bool> {
    if path.canonicalize()?.parent().is_none() {
        return Ok(false);
    }
    for entry in fs::read_dir(path)? {
        // A file that is removed meanwhile is skipped.
        if let Ok(found) = entry?.metadata()
            && !is_own(&found)
        {
            return Ok(false);
        }
    }
    Ok(true)
}
