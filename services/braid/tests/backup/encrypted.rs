//! An encrypted backup, without a database.

use std::{fs::Permissions, os::unix::fs::PermissionsExt, path::Path, process::Command};

use super::INFRA;

/// A patient's name in the copy.
const NAME: &str = "Ada Lovelace of ward 7";
/// Replaces PostgreSQL's programs: the copy is the name alone, and a restore writes it to a file.
const COPYING: &str = r"#!/bin/bash
case $3 in
  psql)
    while IFS= read -r line; do
      case $line in
        \\echo*) echo '-- end of the answer --' ;;
        *pg_export_snapshot* | *server_version_num* | *extversion* | *datdba* | *available_extension*) echo 170000 ;;
      esac
    done ;;
  pg_dump) echo $2 ;;
  pg_restore) cat > $1 ;;
esac
";

#[test]
fn an_encrypted_copy_is_read_with_its_key_alone() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    let path = |name: &str| at(name).display().to_string();
    std::fs::write(at("programs"), COPYING).unwrap();
    let server = format!(
        "bash '{}' '{}' '{NAME}'",
        path("programs"),
        path("restored")
    );
    let backup = |what: &str, folder: &str, key: &[&str]| {
        let mut command = Command::new("python3");
        command.arg(Path::new(INFRA).join("backup/backup.py"));
        command.args([what, &path(folder), "--server", &server]);
        let output = command.args(key).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.success(), said)
    };
    let openssl = |args: &[&str]| {
        let output = Command::new("openssl").args(args).output().unwrap();
        assert!(output.status.success(), "{output:?}");
    };
    let (private, public) = (path("private.pem"), path("public.pem"));
    openssl(&["genrsa", "-out", &private, "2048"]);
    openssl(&["rsa", "-in", &private, "-pubout", "-out", &public]);
    let words = |name: &str, words: &str| {
        std::fs::write(at(name), words).unwrap();
        std::fs::set_permissions(at(name), Permissions::from_mode(0o600)).unwrap();
        path(name)
    };
    let right = words("right", "a long walk in the rain\n");
    let wrong = words("wrong", "a short walk in the sun\n");

    for (folder, made_by, read_by) in [
        (
            "words",
            ["--passphrase-file", &right],
            ["--passphrase-file", &right],
        ),
        (
            "pair",
            ["--recipient", &public],
            ["--private-key", &private],
        ),
    ] {
        let (made, said) = backup("make", folder, &made_by);
        assert!(made, "{said}");
        for file in std::fs::read_dir(at(folder)).unwrap() {
            let bytes = std::fs::read(file.unwrap().path()).unwrap();
            let text = String::from_utf8_lossy(&bytes).into_owned();
            assert!(!text.contains("Lovelace"), "{text}");
        }
        for what in ["check", "restore"] {
            let (done, said) = backup(what, folder, &read_by);
            assert!(done, "{what}: {said}");
            let (done, said) = backup(what, folder, &[]);
            assert!(!done && said.contains("is encrypted"), "{what}: {said}");
        }
        let restored = std::fs::read_to_string(at("restored")).unwrap();
        assert_eq!(restored.trim(), NAME);
        let dump = at(folder).join("database.dump.enc");
        let mut bytes = std::fs::read(&dump).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&dump, bytes).unwrap();
        let (done, said) = backup("restore", folder, &read_by);
        assert!(!done && said.contains("is not what was written"), "{said}");
    }
    let (done, said) = backup("check", "words", &["--passphrase-file", &wrong]);
    assert!(!done && said.contains("the key is another one"), "{said}");
    std::fs::set_permissions(&right, Permissions::from_mode(0o644)).unwrap();
    let (done, said) = backup("make", "other", &["--passphrase-file", &right]);
    assert!(
        !done && said.contains("can be read by other users"),
        "{said}"
    );
}
