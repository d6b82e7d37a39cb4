//! The code by which a new installation's first person signs in once.

use service_kit::Secret;

const CODE_US: i64 = 900_000_000;

/// Valid for one sign-in.
pub(crate) struct SignInCode {
    code: Secret,
    expires_us: i64,
}

impl SignInCode {
    pub(crate) fn new(code: Secret, now_us: i64) -> SignInCode {
        SignInCode {
            code,
            expires_us: now_us + CODE_US,
        }
    }

    pub(super) fn matches(&self, given: &str, now_us: i64) -> bool {
        let (expected, given) = (self.code.expose().as_bytes(), given.as_bytes());
        // Every byte is compared, whether or not an earlier one differed.
        let differ = expected
            .iter()
            .zip(given)
            .fold(0, |differ, (a, b)| differ | (a ^ b));
        now_us < self.expires_us && expected.len() == given.len() && differ == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_code_matches_itself_until_it_expires() {
        let code = SignInCode::new(Secret::new("0123456789abcdef01234567"), 0);
        assert!(code.matches("0123456789abcdef01234567", CODE_US - 1));
        assert!(!code.matches("0123456789abcdef01234567", CODE_US));
        assert!(!code.matches("0123456789abcdef01234568", 0));
        assert!(!code.matches("0123", 0));
        assert!(!code.matches("", 0));
    }
}
