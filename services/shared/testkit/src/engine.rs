//! Real engines that tests need and a machine may lack.

/// Set by `make test`: a test that needs an engine which is not here fails instead of being skipped.
const REQUIRED: &str = "BRAID_TEST_ENGINES";

/// Says that `engine` is not here and how it would be; the caller skips its test.
pub fn missing(engine: &str, how: &str) {
    assert!(
        std::env::var_os(REQUIRED).is_none(),
        "{engine} is not here and {REQUIRED} asks for it: {how}"
    );
    eprintln!("SKIPPED: no {engine} on this machine; {how}");
}
