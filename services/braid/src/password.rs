//! Passwords that an installation generates once, and keeps in a file that only its owner may read.

use std::fs::{self, OpenOptions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rand::RngExt;
use service_kit::Secret;

use crate::process::Failure;

/// Without letters and digits that look alike.
const LETTERS: &[u8] = b"abcdefghijkmnpqrstuvwxyz23456789";
/// Four groups of four of 32 letters: 80 bits.
const GROUPS: usize = 4;
const GROUP_LETTERS: usize = 4;

/// The password in `file`, generated if the file is missing.
pub fn kept_in(file: &Path) -> Result<Secret, Failure> {
    match fs::read_to_string(file) {
        Ok(text) => Ok(Secret::new(text.trim())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let groups: Vec<String> = (0..GROUPS).map(|_| letters(GROUP_LETTERS)).collect();
            let password = groups.join("-");
            create(file, &password)?;
            Ok(Secret::new(password))
        }
        Err(error) => Err(Failure::other(format!("{}: {error}", file.display()))),
    }
}

pub fn letters(count: usize) -> String {
    let mut random = rand::rng();
    (0..count)
        .map(|_| char::from(LETTERS[random.random_range(0..LETTERS.len())]))
        .collect()
}

fn create(file: &Path, text: &str) -> Result<(), Failure> {
    let written = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(file)
        .and_then(|mut file| {
            writeln!(file, "{text}")?;
            file.sync_all()
        });
    written.map_err(|error| Failure::other(format!("{}: {error}", file.display())))
}
