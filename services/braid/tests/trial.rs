//! `braid trial` against separate services: it succeeds on an installation that works, and fails on
//! one that does not.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/separate.rs"]
mod separate;

use program::run;
use separate::{NOUNS, Separate};

#[test]
fn a_trial_reads_back_its_sample_or_fails() {
    let dir = tempfile::tempdir().unwrap();
    let mut separate = Separate::prepare(dir.path(), &[], &[]);
    let store = format!("--store=sqlite:{}", separate.data.display());
    for noun in NOUNS {
        separate.start(noun);
    }
    let (_gateway, sensors) = separate.gateway_of("trial", "trial");
    let to = format!("--to=http://{sensors}");
    // Twice: the remains of the first trial do not disturb the second.
    for _ in 0..2 {
        let (code, said, error) = run(&["trial", &store, &to]);
        assert_eq!(code, 0, "{error}");
        assert!(said.contains("read back as sent"), "{said}");
    }

    // The core reports to another tenant's gateway that the device is not its own.
    let to = format!("--to=http://{}", separate.sensors());
    let (code, _, error) = run(&["trial", &store, &to, "--within-s=5"]);
    assert_eq!(code, 1);
    assert!(
        error.contains("is not registered at this gateway"),
        "{error}"
    );
    let nobody = "--to=http://127.0.0.1:1";
    let (code, _, error) = run(&["trial", &store, nobody, "--within-s=1"]);
    assert_eq!(code, 1);
    assert!(
        error.contains("the gateway refuses the reading within 1 s"),
        "{error}"
    );
}
