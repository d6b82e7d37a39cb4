//! Details of a record as flags.

use std::str::FromStr;

use contracts::patients::{Consent, Contact, Identifier, Patient, Place, Sex};
use service_kit::ConfigError;

use crate::moment::Moment;

/// The flags below by their names in clap, for a command that takes either them or a file.
pub const FLAGS: [&str; 15] = [
    "name",
    "birth_date",
    "sex",
    "identifier",
    "site",
    "ward",
    "room",
    "bed",
    "language",
    "time_zone",
    "spo2_scale",
    "prescribed_by",
    "prescribed_at",
    "contact",
    "consent",
];

#[derive(Debug, Clone, Default, clap::Args)]
pub struct Details {
    /// Name of the person.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    /// Date of birth.
    #[arg(long, value_name = "YYYY-MM-DD")]
    birth_date: Option<String>,
    /// Sex as recorded: female, male, other or unknown.
    #[arg(long, value_name = "SEX")]
    sex: Option<RecordedSex>,
    /// Identifier in another system; may be given several times. The given ones replace the stored
    /// ones.
    #[arg(long, value_name = "SYSTEM=VALUE")]
    identifier: Vec<Named>,
    #[command(flatten)]
    place: Bed,
    /// Language tag, for example de.
    #[arg(long, value_name = "TAG")]
    language: Option<String>,
    /// Time zone by IANA name.
    #[arg(long, value_name = "ZONE")]
    time_zone: Option<String>,
    /// SpO2 scale of NEWS2, 1 or 2. Scale 2 needs --prescribed-by.
    #[arg(long, value_name = "1|2")]
    spo2_scale: Option<u32>,
    /// Person who prescribed SpO2 scale 2.
    #[arg(long, value_name = "NAME", requires = "spo2_scale")]
    prescribed_by: Option<String>,
    /// Time of the prescription, in RFC 3339. Absent: now.
    #[arg(long, value_name = "TIME", requires = "prescribed_by")]
    prescribed_at: Option<Moment>,
    /// Contact as name, relation and address, separated by commas; may be given several times. The
    /// given ones replace the stored ones.
    #[arg(long, value_name = "NAME,RELATION,ADDRESS")]
    contact: Vec<Person>,
    /// Consent with its purpose, as PURPOSE=yes or PURPOSE=no; may be given several times. A given
    /// purpose replaces the stored one.
    #[arg(long, value_name = "PURPOSE=yes|no")]
    consent: Vec<Purpose>,
}

/// Where a patient lies.
#[derive(Debug, Clone, Default, clap::Args)]
pub struct Bed {
    /// Site, for example a hospital or a home.
    #[arg(long, value_name = "NAME")]
    site: Option<String>,
    /// Ward.
    #[arg(long, value_name = "NAME")]
    ward: Option<String>,
    /// Room.
    #[arg(long, value_name = "NAME")]
    room: Option<String>,
    /// Bed.
    #[arg(long, value_name = "NAME")]
    bed: Option<String>,
}

impl From<&Bed> for Place {
    fn from(bed: &Bed) -> Place {
        let text = |it: &Option<String>| it.clone().unwrap_or_default();
        Place {
            site: text(&bed.site),
            ward: text(&bed.ward),
            room: text(&bed.room),
            bed: text(&bed.bed),
        }
    }
}

impl Bed {
    fn over(&self, stored: Option<Place>) -> Option<Place> {
        let given = [&self.site, &self.ward, &self.room, &self.bed];
        if given.iter().all(|it| it.is_none()) {
            return stored;
        }
        Some(Place::from(self))
    }
}

impl Details {
    /// The stored details with those that are given.
    pub fn over(&self, stored: Patient, now_us: i64) -> Result<Patient, ConfigError> {
        let mut it = stored;
        let set = |into: &mut String, given: &Option<String>| {
            if let Some(given) = given {
                given.trim().clone_into(into);
            }
        };
        set(&mut it.name, &self.name);
        set(&mut it.birth_date, &self.birth_date);
        set(&mut it.language, &self.language);
        set(&mut it.time_zone, &self.time_zone);
        if let Some(RecordedSex(sex)) = self.sex {
            it.sex = sex.into();
        }
        if !self.identifier.is_empty() {
            it.identifiers = self.identifier.iter().map(Identifier::from).collect();
        }
        it.place = self.place.over(it.place);
        if let Some(scale) = self.spo2_scale {
            prescribe(&mut it, scale, self.prescribed_by.as_deref())?;
            it.spo2_scale_at_us = self.prescribed_at.map_or(now_us, |at| at.0);
        }
        if !self.contact.is_empty() {
            it.contacts = self.contact.iter().map(|it| it.0.clone()).collect();
        }
        for Purpose(purpose, given) in &self.consent {
            it.consents.retain(|it| it.purpose != *purpose);
            it.consents.push(Consent {
                purpose: purpose.clone(),
                given: *given,
                at_us: now_us,
            });
        }
        patients::check(&it)
            .map_err(|found| ConfigError::new(found.field, found.reason, found.example))?;
        Ok(it)
    }
}

/// Scale 2 is a clinician's decision, so it has a name.
fn prescribe(it: &mut Patient, scale: u32, by: Option<&str>) -> Result<(), ConfigError> {
    if scale == 2 && by.is_none() {
        let reason = "scale 2 needs the person who prescribed it";
        let example = "--spo2-scale 2 --prescribed-by \"Dr. Eve\"";
        return Err(ConfigError::new("spo2-scale", reason, example));
    }
    it.spo2_scale = scale;
    it.spo2_scale_by = by.unwrap_or_default().to_owned();
    Ok(())
}

/// An identifier of another system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Named {
    system: String,
    value: String,
}

impl FromStr for Named {
    type Err = String;

    fn from_str(text: &str) -> Result<Named, String> {
        match text.split_once('=') {
            Some((system, value)) if !system.trim().is_empty() && !value.trim().is_empty() => {
                Ok(Named {
                    system: system.trim().to_owned(),
                    value: value.trim().to_owned(),
                })
            }
            _ => Err("is no identifier; for example mrn=4711".to_owned()),
        }
    }
}

impl From<&Named> for Identifier {
    fn from(it: &Named) -> Identifier {
        Identifier {
            system: it.system.clone(),
            value: it.value.clone(),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordedSex(pub Sex);

impl FromStr for RecordedSex {
    type Err = String;

    fn from_str(text: &str) -> Result<RecordedSex, String> {
        Ok(RecordedSex(match text {
            "female" => Sex::Female,
            "male" => Sex::Male,
            "other" => Sex::Other,
            "unknown" => Sex::Unknown,
            _ => return Err("is none of female, male, other and unknown".to_owned()),
        }))
    }
}

#[derive(Debug, Clone, PartialEq)]
pub struct Person(pub Contact);

impl FromStr for Person {
    type Err = String;

    fn from_str(text: &str) -> Result<Person, String> {
        let mut parts = text.splitn(3, ',').map(|part| part.trim().to_owned());
        let name = parts.next().unwrap_or_default();
        if name.is_empty() {
            let example = "Ben Example, son, +49 30 1234";
            return Err(format!("has no name; for example {example:?}"));
        }
        Ok(Person(Contact {
            name,
            relation: parts.next().unwrap_or_default(),
            address: parts.next().unwrap_or_default(),
        }))
    }
}

/// A purpose, and whether the patient agrees.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Purpose(pub String, pub bool);

impl FromStr for Purpose {
    type Err = String;

    fn from_str(text: &str) -> Result<Purpose, String> {
        match text.rsplit_once('=') {
            Some((purpose, "yes")) => Ok(Purpose(purpose.trim().to_owned(), true)),
            Some((purpose, "no")) => Ok(Purpose(purpose.trim().to_owned(), false)),
            _ => Err("is no consent; for example \"monitoring at home=yes\"".to_owned()),
        }
    }
}
