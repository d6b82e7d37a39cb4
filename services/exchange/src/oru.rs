//! Observations of a patient as an ORU message (ORU^R01). Sans-IO.

use contracts::patients::{Patient, Sex};
use store::LatestVital;
use vitals::Reading;

use crate::hl7::{escaped, time};

/// The newest value of each metric that has a LOINC code. `None`: there is none, or no identifier
/// by which the hospital knows the patient.
pub fn report(
    patient: &Patient,
    newest: &[LatestVital],
    now_us: i64,
    number: u64,
) -> Option<String> {
    let identifiers: Vec<String> = patient
        .identifiers
        .iter()
        .map(|it| format!("{}^^^{}", escaped(&it.value), escaped(&it.system)))
        .collect();
    let mut observations = Vec::new();
    for it in newest {
        let Some(entry) = vitals::entry(it.metric) else {
            continue;
        };
        // A coded value would need the codes of its answers.
        let is_number = match entry.reading {
            Reading::Value => true,
            Reading::Step => entry.document.choices.is_empty(),
            Reading::Waveform { .. } => false,
        };
        let Some(loinc) = entry.loinc.filter(|_| is_number) else {
            continue;
        };
        let value = match entry.document.decimals {
            Some(decimals) => format!("{:.*}", usize::from(decimals), it.value),
            None => it.value.to_string(),
        };
        observations.push(format!(
            "OBX|{}|NM|{loinc}^{}^LN||{}|{}^^UCUM|||||F|||{}||||{}",
            observations.len() + 1,
            escaped(entry.display),
            value,
            escaped(entry.unit),
            time(it.device_time_us),
            escaped(&it.device),
        ));
    }
    if observations.is_empty() || identifiers.is_empty() {
        return None;
    }
    let newest_us = newest.iter().map(|it| it.device_time_us).max()?;
    let sex = match patient.sex() {
        Sex::Female => "F",
        Sex::Male => "M",
        Sex::Other => "O",
        Sex::Unknown => "U",
        Sex::Unspecified => "",
    };
    let birth = patient.birth_date.replace('-', "");
    let mut text = format!(
        "MSH|^~\\&|BRAID||||{}||ORU^R01^ORU_R01|BRAID{number}|P|2.5.1||||||UNICODE UTF-8\r\
         PID|1||{}||{}||{birth}|{sex}\r\
         OBR|1|||85353-1^Vital signs panel^LN|||{}\r",
        time(now_us),
        identifiers.join("~"),
        escaped(patients::name(patient)),
        time(newest_us),
    );
    for line in observations {
        text.push_str(&line);
        text.push('\r');
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use contracts::{patients::Identifier, vitals::Metric};

    use super::*;
    use crate::hl7::Message;

    #[test]
    fn observations_have_their_codes_units_times_and_the_hospitals_own_numbers() {
        let of = |metric: Metric, value: f64| LatestVital {
            patient: "p-1".into(),
            metric,
            value,
            device_time_us: 1_795_960_800_000_000,
            ingest_time_us: 2,
            device: "belt|1".into(),
            gateway: "gw-1".into(),
        };
        let newest = [
            of(Metric::HeartRate, 71.5),
            of(Metric::Activity, 1.0),
            of(Metric::of_key("glucose"), 126.0 / 18.0156),
            of(Metric::of_key("pain"), 4.0),
            of(Metric::Consciousness, 1.0),
        ];
        let mut patient = Patient {
            id: "p-1".into(),
            name: "Ada & Co".into(),
            birth_date: "1940-01-31".into(),
            ..Patient::default()
        };
        assert_eq!(report(&patient, &newest, 1, 1), None, "unknown there");
        patient.identifiers.push(Identifier {
            system: "HOSP".into(),
            value: "4711".into(),
        });
        let text = report(&patient, &newest, 1, 1).unwrap();
        let message = Message::parse(text.as_bytes()).unwrap();
        assert_eq!(message.value("PID", 3, 1), "4711");
        assert_eq!(message.value("PID", 5, 1), "Ada & Co");
        assert_eq!(message.value("PID", 7, 1), "19400131");
        assert_eq!(message.value("OBX", 3, 1), "8867-4");
        assert_eq!(message.value("OBX", 5, 1), "71.5");
        assert_eq!(message.value("OBX", 6, 1), "/min");
        assert_eq!(message.value("OBX", 14, 1), "20261129140000+0000");
        assert_eq!(message.value("OBX", 18, 1), "belt|1");
        assert!(
            text.contains("|15074-8^Blood glucose^LN||6.99|mmol/L^^UCUM|"),
            "{text}"
        );
        assert!(text.contains("|72514-3^Pain (0 to 10)^LN||4|"), "{text}");
        // Activity has no code, and consciousness is coded.
        assert_eq!(
            message.segments().filter(|it| it.name() == "OBX").count(),
            3
        );
    }
}
