//! Records on the terminal, as lines or as JSON. A name always stands beside its id and the date
//! of birth, because two people may have one name.

use contracts::patients::{Likeness, Patient, Sex};
use dashboard::patients::Changed;
use patients::{place_text, status_name};
use serde_json::{Value, json};

use crate::moment::shown;
use crate::process::{self, Failure, say};

pub fn list(listed: &[Patient], json: bool) -> Result<(), Failure> {
    if json {
        return process::json(&listed.iter().map(as_json).collect::<Vec<_>>());
    }
    for patient in listed {
        say(&line(patient))?;
    }
    say(&format!("{} patients", listed.len()))
}

pub fn record(patient: &Patient, merged: &[Patient], json: bool) -> Result<(), Failure> {
    if json {
        let mut value = as_json(patient);
        value["merged"] = merged.iter().map(as_json).collect();
        return process::json(&value);
    }
    say(&line(patient))?;
    for it in &patient.identifiers {
        say(&format!("  {}: {}", it.system, it.value))?;
    }
    for (what, value) in [
        ("sex", sex(patient).to_owned()),
        ("language", patient.language.clone()),
        ("time zone", patient.time_zone.clone()),
        ("SpO2 scale", scale(patient)),
    ] {
        if !value.is_empty() {
            say(&format!("  {what}: {value}"))?;
        }
    }
    for it in &patient.contacts {
        let parts = [&*it.name, &*it.relation, &*it.address].join("  ");
        say(&format!("  contact: {}", parts.trim_end()))?;
    }
    for it in &patient.consents {
        let given = if it.given { "given" } else { "refused" };
        let at = shown(it.at_us);
        say(&format!("  consent to {}: {given} at {at}", it.purpose))?;
    }
    for it in merged {
        say(&format!("  replaces {}", line(it)))?;
    }
    Ok(())
}

pub fn changed(changed: &Changed, json: bool) -> Result<(), Failure> {
    if json {
        return process::json(&json!({
            "patients": changed.patients.iter().map(as_json).collect::<Vec<_>>(),
            "likenesses": changed.likenesses.iter().map(likeness_json).collect::<Vec<_>>(),
        }));
    }
    for patient in &changed.patients {
        say(&line(patient))?;
    }
    for it in &changed.likenesses {
        say(&warning(it))?;
    }
    Ok(())
}

pub fn warning(it: &Likeness) -> String {
    let born = match it.other_birth_date.as_str() {
        "" => String::new(),
        date => format!(", born {date}"),
    };
    format!(
        "warning: {} may be taken for {} ({}{born}): {}",
        it.patient, it.other, it.other_name, it.because
    )
}

/// Id, status, name, date of birth, place.
pub fn line(patient: &Patient) -> String {
    let status = match patient.merged_into.as_str() {
        "" => status_name(patient.status()).to_owned(),
        into => format!("merged into {into}"),
    };
    let mut parts = vec![
        patient.id.clone(),
        status,
        patients::name(patient).to_owned(),
    ];
    if !patient.birth_date.is_empty() {
        parts.push(format!("born {}", patient.birth_date));
    }
    let place = place_text(patient.place.as_ref());
    if !place.is_empty() {
        parts.push(place);
    }
    parts.join("  ")
}

fn sex(patient: &Patient) -> &'static str {
    match patient.sex() {
        Sex::Unspecified => "",
        Sex::Female => "female",
        Sex::Male => "male",
        Sex::Other => "other",
        Sex::Unknown => "unknown",
    }
}

fn scale(patient: &Patient) -> String {
    match patient.spo2_scale {
        2 if !patient.spo2_scale_by.is_empty() => format!(
            "2, by {} at {}",
            patient.spo2_scale_by,
            shown(patient.spo2_scale_at_us)
        ),
        2 => "2".to_owned(),
        _ => "1".to_owned(),
    }
}

/// Null: it is not known.
pub fn as_json(patient: &Patient) -> Value {
    let text = |it: &str| (!it.is_empty()).then(|| it.to_owned());
    let time = |us: i64| (us != 0).then(|| shown(us));
    let place = patient.place.clone().unwrap_or_default();
    json!({
        "id": patient.id,
        "name": patients::name(patient),
        "status": status_name(patient.status()),
        "status_at": time(patient.status_at_us),
        "birth_date": text(&patient.birth_date),
        "sex": text(sex(patient)),
        "identifiers": patient.identifiers.iter().map(|it| json!({ "system": it.system, "value": it.value })).collect::<Vec<_>>(),
        "place": json!({
            "site": text(&place.site),
            "ward": text(&place.ward),
            "room": text(&place.room),
            "bed": text(&place.bed),
        }),
        "language": text(&patient.language),
        "time_zone": text(&patient.time_zone),
        "spo2_scale": patient.spo2_scale.max(1),
        "spo2_scale_by": text(&patient.spo2_scale_by),
        "spo2_scale_at": time(patient.spo2_scale_at_us),
        "contacts": patient.contacts.iter().map(|it| json!({
            "name": it.name, "relation": text(&it.relation), "address": text(&it.address),
        })).collect::<Vec<_>>(),
        "consents": patient.consents.iter().map(|it| json!({
            "purpose": it.purpose, "given": it.given, "at": time(it.at_us),
        })).collect::<Vec<_>>(),
        "merged_into": text(&patient.merged_into),
        "revision": patient.revision,
    })
}

pub fn likeness_json(it: &Likeness) -> Value {
    json!({
        "patient": it.patient,
        "other": it.other,
        "other_name": it.other_name,
        "because": it.because,
    })
}
