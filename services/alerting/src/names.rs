//! How much of a patient's name messages may carry.

use serde::{Deserialize, Serialize};

/// Initials in a label. More would reveal the name.
const INITIALS_MAX: usize = 4;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NamePolicy {
    /// The patient's id alone.
    #[default]
    Id,
    Initials,
    Full,
}

/// Policy for each channel. No name leaves the core unless a tenant asks for it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Names {
    pub email: NamePolicy,
    pub webhook: NamePolicy,
    pub mqtt: NamePolicy,
}

impl NamePolicy {
    /// The part of the name that may be shown. Empty: nothing.
    pub(crate) fn label(self, name: &str) -> String {
        match self {
            NamePolicy::Id => String::new(),
            NamePolicy::Full => name.trim().to_owned(),
            NamePolicy::Initials => {
                let words = name.split_whitespace().take(INITIALS_MAX);
                let initials = words.filter_map(|word| word.chars().next());
                let initials: Vec<String> = initials.map(|it| format!("{it}.")).collect();
                initials.join(" ")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_label_says_no_more_than_the_policy_allows() {
        let label = |policy: NamePolicy| policy.label(" Åsa  Maria Example ");
        assert_eq!(label(NamePolicy::Id), "");
        assert_eq!(label(NamePolicy::Initials), "Å. M. E.");
        assert_eq!(label(NamePolicy::Full), "Åsa  Maria Example");
        assert_eq!(NamePolicy::Initials.label(""), "");
    }
}
