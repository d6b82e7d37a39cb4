//! Likeness of names: a person who is admitted may be taken for another patient of the ward.
//! Sans-IO.
//!
//! Names are compared without case, accents, punctuation and the order of their parts, because
//! sources write "EXAMPLE, Zoë" and "Zoe Example". The number of edits that counts as similar grows
//! with the length of the name.

use std::collections::BTreeSet;

use contracts::patients::{Likeness, Patient};

/// Likenesses in one answer. Further ones are left out.
pub const LIKENESSES_MAX: usize = 1_000;
/// Characters of a name that are compared. The rest is left out, so that a long name costs little.
const COMPARED_MAX: usize = 64;

/// The patients of `present` who are like one of `new`. A patient of the same id is the same one.
pub fn likenesses<'a>(
    new: impl IntoIterator<Item = &'a Patient>,
    present: &[Patient],
) -> Vec<Likeness> {
    let known: Vec<(&Patient, Folded)> = present
        .iter()
        .map(|it| (it, Folded::of(crate::name(it))))
        .collect();
    let mut found = Vec::new();
    for patient in new {
        let name = Folded::of(crate::name(patient));
        for (other, of_other) in known.iter().filter(|(it, _)| it.id != patient.id) {
            let has_same_birth =
                !patient.birth_date.is_empty() && patient.birth_date == other.birth_date;
            if let Some(because) = name.like(of_other, has_same_birth) {
                found.push(Likeness {
                    patient: patient.id.clone(),
                    other: other.id.clone(),
                    other_name: crate::name(other).to_owned(),
                    other_birth_date: other.birth_date.clone(),
                    because: because.to_owned(),
                });
            }
            if found.len() >= LIKENESSES_MAX {
                return found;
            }
        }
    }
    found
}

/// A name as it is compared.
struct Folded {
    parts: BTreeSet<String>,
    text: Vec<char>,
}

impl Folded {
    fn of(name: &str) -> Folded {
        let folded: String = name
            .chars()
            .flat_map(char::to_lowercase)
            .map(without_accent)
            .collect();
        let parts: BTreeSet<String> = folded
            .split(|it: char| !it.is_alphanumeric())
            .filter(|part| !part.is_empty())
            .map(str::to_owned)
            .collect();
        let joined: Vec<&str> = parts.iter().map(String::as_str).collect();
        let text = joined.join(" ").chars().take(COMPARED_MAX).collect();
        Folded { parts, text }
    }

    fn like(&self, other: &Folded, has_same_birth: bool) -> Option<&'static str> {
        if self.parts.is_empty() || other.parts.is_empty() {
            return None;
        }
        if self.parts == other.parts {
            return Some(match has_same_birth {
                true => "same name and same date of birth",
                false => "same name",
            });
        }
        let has_part = self.parts.iter().any(|it| other.parts.contains(it));
        if has_same_birth && has_part {
            return Some("same date of birth and a part of the name");
        }
        let allowed = self.text.len().min(other.text.len()) / 5;
        (edits(&self.text, &other.text, allowed) <= allowed).then_some("similar name")
    }
}

/// Insertions, deletions and exchanges that turn one text into the other; above `most` any larger
/// number.
fn edits(one: &[char], other: &[char], most: usize) -> usize {
    if one.len().abs_diff(other.len()) > most {
        return most + 1;
    }
    let mut row: Vec<usize> = (0..=other.len()).collect();
    for (i, a) in one.iter().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, b) in other.iter().enumerate() {
            let exchanged = diagonal + usize::from(a != b);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row.last().copied().unwrap_or_default()
}

/// The letter without its accent, for letters of Latin alphabets.
const fn without_accent(it: char) -> char {
    match it {
        'à'..='å' | 'ā' | 'ă' | 'ą' | 'æ' => 'a',
        'ç' | 'ć' | 'ĉ' | 'ċ' | 'č' => 'c',
        'ď' | 'đ' | 'ð' => 'd',
        'è'..='ë' | 'ē' | 'ĕ' | 'ė' | 'ę' | 'ě' => 'e',
        'ĝ' | 'ğ' | 'ġ' | 'ģ' => 'g',
        'ì'..='ï' | 'ī' | 'į' | 'ı' => 'i',
        'ł' | 'ĺ' | 'ļ' | 'ľ' => 'l',
        'ñ' | 'ń' | 'ņ' | 'ň' => 'n',
        'ò'..='ö' | 'ø' | 'ō' | 'ő' | 'œ' => 'o',
        'ŕ' | 'ř' => 'r',
        'ś' | 'š' | 'ş' | 'ș' | 'ß' => 's',
        'ţ' | 'ť' | 'ț' | 'þ' => 't',
        'ù'..='ü' | 'ū' | 'ů' | 'ű' | 'ų' => 'u',
        'ý' | 'ÿ' => 'y',
        'ź' | 'ż' | 'ž' => 'z',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patient(id: &str, name: &str, birth_date: &str) -> Patient {
        Patient {
            id: id.into(),
            name: name.into(),
            birth_date: birth_date.into(),
            ..Patient::default()
        }
    }

    fn because(name: &str, birth: &str, other: &str, other_birth: &str) -> Option<String> {
        let new = patient("new", name, birth);
        let found = likenesses([&new], &[patient("old", other, other_birth)]);
        found.into_iter().next().map(|it| it.because)
    }

    #[test]
    fn names_that_a_nurse_could_mix_up_are_found() {
        let like = |one: &str, other: &str| because(one, "", other, "");
        let found = |because: &str| Some(because.to_owned());
        assert_eq!(like("Zoë Example", "EXAMPLE, Zoe"), found("same name"));
        assert_eq!(like("Anna Meier", "Anna Meyer"), found("similar name"));
        assert_eq!(like("Anna Meier", "Hans Gruber"), None);
        assert_eq!(like("Ada", "Ben"), None, "short names need be equal");
        assert_eq!(like("", ""), None, "compared by id: new and old");
        let birth = "1941-07-30";
        assert_eq!(
            because("Ada Example", birth, "Ada Sample-Berg", birth),
            found("same date of birth and a part of the name")
        );
        assert_eq!(
            because("Ada Example", birth, "Example Ada", birth),
            found("same name and same date of birth")
        );
        assert_eq!(because("Ada Example", birth, "Ada Sample-Berg", ""), None);
        let same = patient("old", "Ada", "");
        assert!(likenesses([&same], std::slice::from_ref(&same)).is_empty());
    }

    proptest! {
        /// The order of two patients does not matter, and one edit of a long name is always found.
        #[test]
        fn likeness_is_mutual_and_finds_one_edit(
            name in "[a-z]{5,20}", at in 0usize..5, letter in "[a-z]", other in "[a-z ]{0,20}"
        ) {
            let mutual = because(&name, "", &other, "").is_some();
            prop_assert_eq!(mutual, because(&other, "", &name, "").is_some());
            let mut edited = name.clone();
            edited.replace_range(at..=at, &letter);
            prop_assert!(because(&name, "", &edited, "").is_some());
        }
    }
}
