//! The content of an ADT message about a patient, and the changes that follow from it. Sans-IO.
//!
//! | event | change |
//! |---|---|
//! | A01 | admit, or correct the record of a patient who is there already |
//! | A02, A12 | move to the place of PV1-3 |
//! | A03 | discharge, or record the death (PID-30, or a disposition of PV1-36 that means death) |
//! | A08 | correct the details; record the death (PID-30) |
//! | A11 | discharge, since the admission was cancelled |
//! | A13 | reinstate |
//! | A40 | merge the record of MRG-1 into that of PID-3 |
//!
//! A message that comes again changes nothing: each change is left out where the record already
//! says the same.

use contracts::patients::{Change, Identifier, Operation, Patient, PatientStatus, Place, Sex};

use sha2::{Digest, Sha256};

use crate::hl7::{Field, Message};

/// Values of PV1-36 that mean death in HL7's table 0112: 20 and its national variants 40 to 42.
const DEATHS: [&str; 4] = ["20", "40", "41", "42"];
/// Bytes of a patient's id that follow from an identifier.
const ID_BYTES_MAX: usize = 64;
/// Bytes of the digest in an id.
const DIGEST_BYTES: usize = 8;
/// System of an identifier without an assigning authority.
const NO_AUTHORITY: &str = "hospital";

/// Events that are understood.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    Admit,
    Move,
    Discharge,
    Update,
    CancelAdmit,
    CancelDischarge,
    Merge,
}

/// Why a message changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AdtError {
    #[error("MSH-9 is {0}: only ADT messages are taken")]
    NoAdt(String),
    #[error("event {0} is not taken: A01, A02, A03, A08, A11, A12, A13 and A40 are")]
    Event(String),
    #[error("{0} names no patient: an identifier has a value and, in most hospitals, an authority")]
    NoIdentifier(&'static str),
    #[error("PID-7 is {0}, which is no date; for example 19410730")]
    BirthDate(String),
    #[error("no patient has an identifier of PID-3: send the admission (A01) first")]
    Unknown,
}

/// A message about one patient.
#[derive(Debug, Clone, PartialEq)]
pub struct Adt {
    pub event: Event,
    /// Identifiers of PID-3, the first is the one by which new patients get their id.
    pub identifiers: Vec<Identifier>,
    /// Identifiers of MRG-1.
    pub merged: Vec<Identifier>,
    /// The message's details. Empty texts are left out.
    pub details: Patient,
    /// PV1-3.
    pub place: Option<Place>,
    pub has_died: bool,
}

impl Adt {
    pub fn read(message: &Message) -> Result<Adt, AdtError> {
        let kind = message.value("MSH", 9, 1);
        if kind != "ADT" {
            return Err(AdtError::NoAdt(kind.into_owned()));
        }
        let code = message.value("MSH", 9, 2);
        let event = match code.as_ref() {
            "A01" => Event::Admit,
            "A02" | "A12" => Event::Move,
            "A03" => Event::Discharge,
            "A08" => Event::Update,
            "A11" => Event::CancelAdmit,
            "A13" => Event::CancelDischarge,
            "A40" => Event::Merge,
            other => return Err(AdtError::Event(other.to_owned())),
        };
        let own = identifiers(message, "PID", 3, "PID-3")?;
        let merged = match event {
            Event::Merge => identifiers(message, "MRG", 1, "MRG-1")?,
            _ => Vec::new(),
        };
        let has_died = message.value("PID", 30, 1) == "Y"
            || event == Event::Discharge && DEATHS.contains(&message.value("PV1", 36, 1).as_ref());
        Ok(Adt {
            event,
            details: Patient {
                identifiers: own.clone(),
                name: name(message),
                birth_date: birth_date(message)?,
                sex: sex(message).into(),
                language: language(message),
                ..Patient::default()
            },
            identifiers: own,
            merged,
            place: place(message),
            has_died,
        })
    }

    /// The changes, of which each is made for itself. `found` has an identifier of PID-3, and `old`
    /// one of MRG-1.
    pub fn changes(
        &self,
        found: Option<&Patient>,
        old: Option<&Patient>,
    ) -> Result<Vec<Change>, AdtError> {
        let Some(found) = found else {
            return match self.event {
                Event::Admit => Ok(vec![self.admission(None)]),
                // Nothing is known about either record, so nothing is to be merged.
                Event::Merge if old.is_none() => Ok(Vec::new()),
                // The record stays, under its new number.
                Event::Merge => Ok(old.map(|old| self.correction(old)).into_iter().collect()),
                _ => Err(AdtError::Unknown),
            };
        };
        let status = found.status();
        let is_present = matches!(
            status,
            PatientStatus::Expected | PatientStatus::Admitted | PatientStatus::Paused
        );
        let bare = |operation: Operation| Change {
            patient: found.id.clone(),
            operation: operation.into(),
            ..Change::default()
        };
        let changes = match self.event {
            Event::Admit if matches!(status, PatientStatus::Admitted | PatientStatus::Paused) => {
                let moved = self.moved(found);
                [self.corrected(found), moved]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Event::Admit => vec![self.admission(Some(found))],
            Event::Move => self.moved(found).into_iter().collect(),
            Event::Discharge | Event::Update if self.has_died => {
                let has_died = status == PatientStatus::Died;
                (!has_died)
                    .then(|| bare(Operation::Die))
                    .into_iter()
                    .collect()
            }
            Event::Discharge | Event::CancelAdmit => is_present
                .then(|| bare(Operation::Discharge))
                .into_iter()
                .collect(),
            Event::Update => {
                let moved = self.moved(found).filter(|_| is_present);
                [self.corrected(found), moved]
                    .into_iter()
                    .flatten()
                    .collect()
            }
            Event::CancelDischarge => (!is_present)
                .then(|| bare(Operation::Reinstate))
                .into_iter()
                .collect(),
            Event::Merge => {
                let merge = old.filter(|old| old.id != found.id).map(|old| Change {
                    patient: old.id.clone(),
                    operation: Operation::Merge.into(),
                    into: found.id.clone(),
                    ..Change::default()
                });
                merge.into_iter().collect()
            }
        };
        Ok(changes)
    }

    fn admission(&self, found: Option<&Patient>) -> Change {
        let mut details = self.merged_with(found.cloned().unwrap_or_default());
        if self.place.is_some() {
            details.place.clone_from(&self.place);
        }
        Change {
            patient: found.map_or_else(|| id_of(&self.identifiers), |found| found.id.clone()),
            operation: Operation::Admit.into(),
            details: Some(details),
            ..Change::default()
        }
    }

    fn correction(&self, found: &Patient) -> Change {
        Change {
            patient: found.id.clone(),
            operation: Operation::Correct.into(),
            details: Some(self.merged_with(found.clone())),
            revision: found.revision,
            ..Change::default()
        }
    }

    /// `None`: the record says the same.
    fn corrected(&self, found: &Patient) -> Option<Change> {
        let change = self.correction(found);
        (change.details.as_ref() != Some(found)).then_some(change)
    }

    fn moved(&self, found: &Patient) -> Option<Change> {
        let place = self.place.clone()?;
        (found.place.as_ref() != Some(&place)).then(|| Change {
            patient: found.id.clone(),
            operation: Operation::Move.into(),
            place: Some(place),
            ..Change::default()
        })
    }

    /// Details that the message leaves out stay as they are.
    fn merged_with(&self, mut record: Patient) -> Patient {
        let said = &self.details;
        let put = |text: &mut String, said: &String| {
            if !said.is_empty() {
                text.clone_from(said);
            }
        };
        put(&mut record.name, &said.name);
        put(&mut record.birth_date, &said.birth_date);
        put(&mut record.language, &said.language);
        if said.sex() != Sex::Unspecified {
            record.sex = said.sex;
        }
        for identifier in &self.identifiers {
            if !record.identifiers.contains(identifier) {
                record.identifiers.push(identifier.clone());
            }
        }
        record
    }
}

/// Identifiers of a field of type CX, each with its authority: a name, else its universal id. There
/// is at least one; `place` names the field for people.
fn identifiers(
    message: &Message,
    segment: &str,
    number: usize,
    place: &'static str,
) -> Result<Vec<Identifier>, AdtError> {
    let none = || AdtError::NoIdentifier(place);
    let segment = message.segment(segment).ok_or_else(none)?;
    let identifier = |field: Field<'_>| {
        let authority = [field.subcomponent(4, 1), field.subcomponent(4, 2)];
        let system = authority.iter().find(|it| !it.is_empty());
        Identifier {
            system: system.map_or(NO_AUTHORITY, AsRef::as_ref).to_owned(),
            value: field.component(1).into_owned(),
        }
    };
    let mut found: Vec<Identifier> = Vec::new();
    for field in segment.fields(number).filter(|it| !it.is_null()) {
        let identifier = identifier(field);
        if !identifier.value.is_empty() && !found.contains(&identifier) {
            found.push(identifier);
        }
    }
    if found.is_empty() {
        return Err(none());
    }
    Ok(found)
}

/// Given names before the family name, with suffix and prefix.
fn name(message: &Message) -> String {
    let part = |component: usize| message.value("PID", 5, component);
    let parts = [part(5), part(2), part(3), part(1), part(4)];
    let known: Vec<&str> = parts
        .iter()
        .map(AsRef::as_ref)
        .filter(|it| !it.is_empty())
        .collect();
    known.join(" ")
}

fn birth_date(message: &Message) -> Result<String, AdtError> {
    let text = message.value("PID", 7, 1);
    if text.is_empty() || text == "\"\"" {
        return Ok(String::new());
    }
    let day = text
        .get(..8)
        .filter(|day| day.bytes().all(|it| it.is_ascii_digit()));
    let date = day.map(|day| format!("{}-{}-{}", &day[..4], &day[4..6], &day[6..]));
    let is_date =
        |date: &String| calendar::parse_rfc3339_us(&format!("{date}T00:00:00Z")).is_some();
    date.filter(is_date)
        .ok_or_else(|| AdtError::BirthDate(text.into_owned()))
}

fn sex(message: &Message) -> Sex {
    match message.value("PID", 8, 1).as_ref() {
        "F" => Sex::Female,
        "M" => Sex::Male,
        "O" | "A" => Sex::Other,
        "U" | "N" => Sex::Unknown,
        _ => Sex::Unspecified,
    }
}

/// PID-15, where it is a language tag; hospitals also write words there.
fn language(message: &Message) -> String {
    let text = message.value("PID", 15, 1).to_lowercase();
    let is_tag = (2..=3).contains(&text.len()) && text.bytes().all(|it| it.is_ascii_lowercase());
    if is_tag { text } else { String::new() }
}

/// PV1-3: point of care, room, bed and facility.
fn place(message: &Message) -> Option<Place> {
    let part = |component: usize| message.value("PV1", 3, component).into_owned();
    let place = Place {
        site: part(4),
        ward: part(1),
        room: part(2),
        bed: part(3),
    };
    (place != Place::default()).then_some(place)
}

/// The id of a new patient: the first identifier, in the characters that an id may have. The same
/// identifier always gives the same id, so an admission that comes again makes no second patient.
/// Where characters are lost, a digest keeps the ids of two identifiers apart.
fn id_of(identifiers: &[Identifier]) -> String {
    let Some(Identifier { system, value }) = identifiers.first() else {
        return String::new();
    };
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "._-".contains(it);
    let plain = |text: &str| -> String {
        text.chars()
            .map(|it| if is_plain(it) { it } else { '-' })
            .collect()
    };
    let id = format!("{}:{}", plain(system), plain(value));
    let is_whole = id.len() <= ID_BYTES_MAX && system.chars().chain(value.chars()).all(is_plain);
    if is_whole {
        return id;
    }
    let digest = Sha256::digest(format!("{}:{system}:{value}", system.len()));
    let digest: String = digest
        .iter()
        .take(DIGEST_BYTES)
        .map(|it| format!("{it:02x}"))
        .collect();
    let kept: String = id.chars().take(ID_BYTES_MAX - digest.len() - 1).collect();
    format!("{kept}-{digest}")
}

#[cfg(test)]
#[path = "adt_tests.rs"]
mod tests;
