//! The program that ships, which experiments in real time start as a process.

use std::path::PathBuf;
use std::{env, io};

/// Path of `braid`, where it is not beside this program.
const VARIABLE: &str = "BRAID_BIN";

/// The file of `braid`.
pub fn braid() -> io::Result<PathBuf> {
    let file = match env::var_os(VARIABLE) {
        Some(file) => PathBuf::from(file),
        None => env::current_exe()?.with_file_name("braid"),
    };
    if file.is_file() {
        return Ok(file);
    }
    let text = format!(
        "no {}: cargo build --release -p braid, or name another by {VARIABLE}=FILE",
        file.display()
    );
    Err(io::Error::new(io::ErrorKind::NotFound, text))
}
