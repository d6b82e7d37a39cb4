//! One test, because the umask belongs to the process.

#![allow(clippy::unwrap_used)]

use std::{
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt,
    path::Path,
};

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

#[test]
fn files_and_folders_are_private_for_any_umask_and_old_ones_are_corrected() {
    rustix::process::umask(rustix::fs::Mode::empty());
    let dir = tempfile::tempdir().unwrap();
    let (above, data) = (dir.path().join("above"), dir.path().join("above/data"));
    private_files::folder(&data).unwrap();
    assert_eq!((mode(&above), mode(&data)), (0o700, 0o700));
    let file = data.join("new");
    private_files::file(&file).unwrap();
    assert_eq!(mode(&file), 0o600);
    private_files::options()
        .create_new(true)
        .write(true)
        .open(data.join("other"))
        .unwrap();
    assert_eq!(mode(&data.join("other")), 0o600);
    let whole = data.join("whole");
    fs::write(&whole, "before").unwrap();
    fs::set_permissions(&whole, Permissions::from_mode(0o644)).unwrap();
    private_files::replace(&whole, b"after").unwrap();
    assert_eq!(
        (mode(&whole), fs::read(&whole).unwrap()),
        (0o600, b"after".to_vec())
    );
    assert!(!data.join("whole.new").exists());

    let old = data.join("old");
    fs::write(&old, "a sample").unwrap();
    assert_eq!(mode(&old), 0o666);
    fs::set_permissions(&data, Permissions::from_mode(0o755)).unwrap();
    private_files::file(&old).unwrap();
    assert_eq!(
        (mode(&old), fs::read(&old).unwrap()),
        (0o600, b"a sample".to_vec())
    );
    fs::set_permissions(&old, Permissions::from_mode(0o644)).unwrap();
    private_files::folder_of_files(&data).unwrap();
    assert_eq!((mode(&data), mode(&old)), (0o700, 0o600));
    private_files::mend_file(&data.join("none")).unwrap();

    // A folder that is open to everybody keeps its mode.
    let shared = dir.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::set_permissions(&shared, Permissions::from_mode(0o1777)).unwrap();
    private_files::folder(&shared).unwrap();
    assert_eq!(mode(&shared), 0o1777);
}
