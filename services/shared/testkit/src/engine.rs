//! Real engines that tests need and a machine may lack.

/// Set by `make test`: a test whose engine is missing then fails instead of being skipped.
const REQUIRED: &str = "BRAID_TEST_ENGINES";

/// Reports that `engine` is missing, and how to install it; the caller skips its test.
pub fn missing(engine: &str, how: &str) {
    assert!(
        std::env::var_os(REQUIRED).is_none(),
        "{engine} is not here and {REQUIRED} asks for it: {how}"
    );
    eprintln!("SKIPPED: no {engine} on this machine; {how}");
}
