//! Says of which commit the program is.
//!
//! A release is built anew for each commit. A debug build is not, since all tests would be compiled
//! again after each commit: it says the commit of the first build.

#[path = "src/commit.rs"]
mod commit;

use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=src/commit.rs");
    println!("cargo:rerun-if-env-changed=BRAID_COMMIT");
    let is_debug = std::env::var("PROFILE").is_ok_and(|it| it == "debug");
    // Images are built without the files of git.
    let named = std::env::var("BRAID_COMMIT").ok();
    let named = named.filter(|it| it.bytes().all(|it| it.is_ascii_alphanumeric()));
    let (commit, is_exact) = match named.filter(|it| !it.is_empty()) {
        Some(commit) => (Some(commit), true),
        None => {
            let head = commit::head(Path::new("../.."));
            if let Some(head) = head.as_ref().filter(|_| !is_debug) {
                for file in &head.files {
                    println!("cargo:rerun-if-changed={}", file.display());
                }
            }
            (head.map(|it| it.commit), !is_debug)
        }
    };
    let built_from = match commit {
        None => "commit unknown".to_owned(),
        Some(commit) => {
            let commit: String = commit.chars().take(commit::DIGITS).collect();
            let or_later = if is_exact {
                ""
            } else {
                " or later, debug build"
            };
            format!("commit {commit}{or_later}")
        }
    };
    println!("cargo:rustc-env=BRAID_BUILT_FROM={built_from}");
}
