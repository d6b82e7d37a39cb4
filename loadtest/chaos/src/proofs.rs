//! The system's own proofs of completeness against what the sensors know. The oracle stays
//! independent: it compares rows with readings, and never asks a proof.

use std::collections::{HashMap, HashSet};

use contracts::{
    query::{Proof, ProofState},
    vitals::GapCause,
};

use crate::{
    facts::{Reading, Row},
    scenario::device_of,
    verdict::Fault,
};

/// A proof must be right in both directions. Every accepted reading before its end is stored. No
/// sample is called lost without a cause while all are there.
pub fn judge(accepted: &[Reading], rows: &[Row], proofs: &[Proof]) -> Vec<(Fault, String)> {
    let stored: HashSet<(&str, &str, u64)> = rows
        .iter()
        .map(|row| (row.device.as_str(), row.metric, row.number))
        .collect();
    let mut lost: HashMap<(&str, &str), Vec<&Reading>> = HashMap::new();
    for reading in accepted {
        let device = device_of(reading.patient);
        if !stored.contains(&(device.as_str(), reading.metric, reading.number)) {
            let key = (reading.patient, reading.metric);
            lost.entry(key).or_default().push(reading);
        }
    }
    let mut faults = Vec::new();
    for proof in proofs {
        for stream in &proof.streams {
            let key = (proof.patient.as_str(), stream.stream.as_str());
            let of_stream = lost.get(&key).into_iter().flatten();
            let mut denied = of_stream
                .filter(|it| (proof.from_us..stream.complete_until_us).contains(&it.time_us));
            if let Some(reading) = denied.next() {
                let text = format!(
                    "{}/{} is complete until {}, without {reading:?}",
                    stream.device, stream.stream, stream.complete_until_us
                );
                faults.push((Fault::ProofOfTheLost, text));
            }
            let unexplained = stream.gaps.iter();
            let mut unexplained = unexplained.filter(|gap| gap.cause() == GapCause::Unexplained);
            if stream.state() == ProofState::Incomplete
                && lost.is_empty()
                && let Some(gap) = unexplained.next()
            {
                let text = format!("{}/{}: {gap:?}", stream.device, stream.stream);
                faults.push((Fault::ProofOfNoLoss, text));
            }
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use contracts::query::{ProofGap, StreamProof};

    use super::*;

    fn reading(number: u64) -> Reading {
        Reading {
            patient: "ada",
            metric: "heart-rate",
            number,
            time_us: number.cast_signed(),
            value: 70.0,
        }
    }

    fn row(number: u64) -> Row {
        Row {
            device: device_of("ada"),
            patient: "ada".into(),
            metric: "heart-rate",
            number,
            time_us: number.cast_signed(),
            arrived_us: number.cast_signed(),
            value: 70.0,
        }
    }

    fn proof(complete_until_us: i64, gaps: Vec<ProofGap>) -> Proof {
        let state = match gaps.len() {
            0 => ProofState::Complete,
            _ => ProofState::Incomplete,
        };
        let stream = StreamProof {
            device: device_of("ada"),
            stream: "heart-rate".into(),
            state: state.into(),
            complete_until_us,
            gaps,
            ..StreamProof::default()
        };
        Proof {
            patient: "ada".into(),
            streams: vec![stream],
            ..Proof::default()
        }
    }

    #[test]
    fn a_proof_of_the_lost_and_a_loss_of_nothing_are_faults() {
        let accepted = [reading(1), reading(2), reading(3)];
        let faults = |rows: &[Row], proof: Proof| -> Vec<Fault> {
            let judged = judge(&accepted, rows, &[proof]);
            judged.into_iter().map(|(fault, _)| fault).collect()
        };
        let all = [row(1), row(2), row(3)];
        assert_eq!(faults(&all, proof(9, Vec::new())), []);
        let without = [row(1), row(3)];
        assert_eq!(
            faults(&without, proof(9, Vec::new())),
            [Fault::ProofOfTheLost]
        );
        assert_eq!(
            faults(&without, proof(2, Vec::new())),
            [],
            "until then it is"
        );
        let gap = ProofGap {
            cause: GapCause::Unexplained.into(),
            ..ProofGap::default()
        };
        assert_eq!(faults(&all, proof(1, vec![gap])), [Fault::ProofOfNoLoss]);
        assert_eq!(faults(&without, proof(1, vec![gap])), []);
    }
}
