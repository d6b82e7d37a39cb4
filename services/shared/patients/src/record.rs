//! Checks of a record's details before they are stored.

use contracts::patients::{Patient, Place, Sex};
use vitals::{Invalid, validate_text};

/// Bytes of a patient's name.
pub const NAME_BYTES_MAX: usize = 256;
/// Bytes of any other text of a record, for example a ward or a telephone number.
pub const TEXT_BYTES_MAX: usize = 128;
/// Identifiers of one patient in other systems. Further ones are refused.
pub const IDENTIFIERS_MAX: usize = 16;
/// Contacts of one patient. Further ones are refused.
pub const CONTACTS_MAX: usize = 8;
/// Consents of one patient. Further ones are refused.
pub const CONSENTS_MAX: usize = 16;

/// Refuses details that no list, message or log can show, and those that mean nothing.
pub fn check(details: &Patient) -> Result<(), Invalid> {
    if !details.name.is_empty() {
        validate_text("name", &details.name, NAME_BYTES_MAX, "Ada Example")?;
    }
    bounded("identifiers", details.identifiers.len(), IDENTIFIERS_MAX)?;
    bounded("contacts", details.contacts.len(), CONTACTS_MAX)?;
    bounded("consents", details.consents.len(), CONSENTS_MAX)?;
    for (at, it) in details.identifiers.iter().enumerate() {
        validate_text("system", &it.system, TEXT_BYTES_MAX, "mrn")?;
        validate_text("value", &it.value, TEXT_BYTES_MAX, "4711")?;
        if details.identifiers[..at].contains(it) {
            return Err(Invalid::new(
                "identifiers",
                format!("{} {} is there twice", it.system, it.value),
                "mrn=4711",
            ));
        }
    }
    birth_date(&details.birth_date)?;
    if Sex::try_from(details.sex).is_err() {
        return Err(Invalid::new("sex", "is unknown", "female"));
    }
    if let Some(place) = &details.place {
        check_place(place)?;
    }
    language(&details.language)?;
    if !details.time_zone.is_empty() && calendar::Zone::parse(&details.time_zone).is_none() {
        let reason = "is not the name of a time zone";
        return Err(Invalid::new("time_zone", reason, "Europe/Berlin"));
    }
    scale(details)?;
    for it in &details.contacts {
        validate_text("contact", &it.name, TEXT_BYTES_MAX, "Ben Example")?;
        short("relation", &it.relation)?;
        short("address", &it.address)?;
    }
    for it in &details.consents {
        validate_text("consent", &it.purpose, TEXT_BYTES_MAX, "monitoring at home")?;
    }
    Ok(())
}

pub fn check_place(place: &Place) -> Result<(), Invalid> {
    short("site", &place.site)?;
    short("ward", &place.ward)?;
    short("room", &place.room)?;
    short("bed", &place.bed)
}

/// The place in one line, from wide to narrow; empty without one.
pub fn place_text(place: Option<&Place>) -> String {
    let Some(place) = place else {
        return String::new();
    };
    let parts = [&place.site, &place.ward, &place.room, &place.bed];
    let known: Vec<&str> = parts
        .into_iter()
        .map(String::as_str)
        .filter(|part| !part.is_empty())
        .collect();
    known.join(" / ")
}

fn bounded(field: &'static str, count: usize, max: usize) -> Result<(), Invalid> {
    if count <= max {
        return Ok(());
    }
    Err(Invalid::new(
        field,
        format!("has {count} entries, more than {max}"),
        "fewer",
    ))
}

/// An optional text.
fn short(field: &'static str, text: &str) -> Result<(), Invalid> {
    if text.is_empty() {
        return Ok(());
    }
    validate_text(field, text, TEXT_BYTES_MAX, "4 West")
}

fn birth_date(date: &str) -> Result<(), Invalid> {
    let is_date =
        date.len() == 10 && calendar::parse_rfc3339_us(&format!("{date}T00:00:00Z")).is_some();
    if date.is_empty() || is_date {
        return Ok(());
    }
    Err(Invalid::new("birth_date", "is no date", "1941-07-30"))
}

/// The form of a language tag. The list of languages grows, so it is not checked.
fn language(tag: &str) -> Result<(), Invalid> {
    let is_part = |part: &str| {
        (1..=8).contains(&part.len()) && part.bytes().all(|it| it.is_ascii_alphanumeric())
    };
    let first = tag.split('-').next().unwrap_or_default();
    let is_tag = tag.len() <= 35
        && (2..=8).contains(&first.len())
        && first.bytes().all(|it| it.is_ascii_alphabetic())
        && tag.split('-').all(is_part);
    if tag.is_empty() || is_tag {
        return Ok(());
    }
    Err(Invalid::new("language", "is no language tag", "de-AT"))
}

/// Scale 2 is a prescription, so it has a person and a time.
fn scale(details: &Patient) -> Result<(), Invalid> {
    let example = "2, with the person and the time of the prescription";
    match details.spo2_scale {
        0 | 1 => short("spo2_scale_by", &details.spo2_scale_by),
        2 if details.spo2_scale_by.is_empty() || details.spo2_scale_at_us == 0 => {
            let reason = "2 needs the person who prescribed it, and when";
            Err(Invalid::new("spo2_scale", reason, example))
        }
        2 => short("spo2_scale_by", &details.spo2_scale_by),
        _ => Err(Invalid::new("spo2_scale", "is neither 1 nor 2", example)),
    }
}

#[cfg(test)]
mod tests {
    use contracts::patients::{Contact, Identifier};

    use super::*;

    fn refused(change: impl FnOnce(&mut Patient)) -> Option<&'static str> {
        let mut details = Patient::default();
        change(&mut details);
        check(&details).err().map(|it| it.field)
    }

    #[test]
    fn details_that_mean_nothing_are_refused_by_field() {
        let mrn = || Identifier {
            system: "mrn".into(),
            value: "4711".into(),
        };
        assert_eq!(refused(|_| {}), None);
        assert_eq!(refused(|it| it.identifiers = vec![mrn()]), None);
        assert_eq!(
            refused(|it| it.identifiers = vec![mrn(), mrn()]),
            Some("identifiers")
        );
        assert_eq!(
            refused(|it| it.identifiers = vec![Identifier::default()]),
            Some("system")
        );
        assert_eq!(refused(|it| it.name = "Ada\u{1b}".into()), Some("name"));
        assert_eq!(refused(|it| it.birth_date = "1941-07-30".into()), None);
        for wrong in ["30.07.1941", "1941-02-30", "1941-7-3", "1941"] {
            let found = refused(|it| it.birth_date = wrong.into());
            assert_eq!(found, Some("birth_date"), "{wrong}");
        }
        assert_eq!(refused(|it| it.sex = 9), Some("sex"));
        assert_eq!(refused(|it| it.language = "de-AT".into()), None);
        assert_eq!(refused(|it| it.language = "d".into()), Some("language"));
        assert_eq!(
            refused(|it| it.time_zone = "Mars".into()),
            Some("time_zone")
        );
        assert_eq!(refused(|it| it.spo2_scale = 2), Some("spo2_scale"));
        let many = |it: &mut Patient| it.contacts = vec![Contact::default(); CONTACTS_MAX + 1];
        assert_eq!(refused(many), Some("contacts"));
        let prescribed = |it: &mut Patient| {
            it.spo2_scale = 2;
            it.spo2_scale_by = "Dr. Eve".into();
            it.spo2_scale_at_us = 1;
        };
        assert_eq!(refused(prescribed), None);
    }

    #[test]
    fn a_place_is_one_line_from_wide_to_narrow() {
        let place = Place {
            ward: "4 West".into(),
            bed: "12".into(),
            ..Place::default()
        };
        assert_eq!(place_text(Some(&place)), "4 West / 12");
        assert_eq!(place_text(None), "");
    }
}
