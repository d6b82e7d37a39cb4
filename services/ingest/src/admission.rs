//! Decides which entries of an upload may go on, and fills in what ingest adds. Pure, given what
//! the register says.

use clocks::{GatewayClock, TOLERATED_US, Taken};
use contracts::text;
use contracts::vitals::{EdgeAlert, Gap, GapCause, Sample};
use vitals::{
    ClockBounds, IDENTIFIER_BYTES_MAX, TRACEPARENT_BYTES_MAX,
    attribution::{Interval, When, attribute},
    validate_identifier, validate_person, validate_reading, validate_time,
};

/// Longest summary of an alert, in bytes; a longer one is cut.
const SUMMARY_BYTES_MAX: usize = 1024;
/// Longest subject of rules that there is: an identifier behind `patient:`.
const SUBJECT_BYTES_MAX: usize = IDENTIFIER_BYTES_MAX + 8;
/// Streams that one device may have in a day.
pub(crate) const STREAMS_PER_DEVICE_MAX: usize = 64;
/// The store's integers are signed.
const SEQUENCE_MAX: u64 = i64::MAX as u64;

/// Why an entry goes no further. The kind is a label of metrics; the reason is for people at the
/// gateway.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{reason}")]
pub(crate) struct Refusal {
    pub kind: &'static str,
    pub reason: String,
}

impl Refusal {
    /// The gateway is not registered, or it does not serve the patient.
    pub(crate) const NOT_OWNED: &'static str = "not-owned";
    /// The entry names another patient or gateway than the register and the certificate do.
    pub(crate) const CONTRADICTS: &'static str = "contradicts-register";
    pub(crate) const CLOCK: &'static str = "clock";
    /// The entry would be kept apart, and there is no room.
    pub(crate) const NO_ROOM: &'static str = "no-room";
    pub(crate) const MALFORMED: &'static str = "malformed";
    pub(crate) const STREAMS: &'static str = "too-many-streams";

    /// Whether the entry may still belong to a patient. Then it is kept apart until a person
    /// decides. A malformed entry cannot be kept.
    pub(crate) fn is_kept_apart(&self) -> bool {
        !matches!(
            self.kind,
            Refusal::CLOCK | Refusal::MALFORMED | Refusal::STREAMS
        )
    }

    pub(crate) fn without_room(self) -> Refusal {
        let reason = format!("{}, and no more is kept apart of this gateway", self.reason);
        Refusal::new(Refusal::NO_ROOM, reason)
    }

    fn new(kind: &'static str, reason: impl ToString) -> Refusal {
        Refusal {
            kind,
            reason: reason.to_string(),
        }
    }

    pub(crate) fn too_many_streams(device: &str) -> Refusal {
        let reason = format!(
            "stream: device `{device}` has used {STREAMS_PER_DEVICE_MAX} others within a day; leave it empty to use the metric's name"
        );
        Refusal::new(Refusal::STREAMS, reason)
    }

    fn malformed(reason: impl ToString) -> Refusal {
        Refusal::new(Refusal::MALFORMED, reason)
    }
}

pub use service_kit::tls::GatewayId;

/// By how much the corrected time of an entry may be wrong. For a gateway that does not send its
/// time, this is the tolerance.
pub(crate) fn doubt_us(clock: Option<GatewayClock>, taken: Taken) -> i64 {
    clock.map_or(TOLERATED_US, |clock| clock.doubt_us(taken))
}

/// When something arrives, by the core's clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Arrival {
    pub now_us: i64,
    /// A time beyond this is ahead of the core's clock, even if that clock was set wrong: see
    /// [`clocks::OwnClock::latest_us`].
    pub latest_us: i64,
}

impl Arrival {
    /// The time of an event as it may be stored. An event cannot be in the future: a time further
    /// ahead than [`ClockBounds::INGEST`] allows becomes the present.
    fn bounded_us(self, event_us: i64) -> i64 {
        let latest_us = self.latest_us.saturating_add(ClockBounds::INGEST.future_us);
        if event_us > latest_us {
            self.now_us
        } else {
            event_us
        }
    }
}

/// Checks a sample and fills in what ingest adds, or returns the reason of the refusal for people.
/// `worn`: when a patient wore its device. `clock`: the gateway's clock, when the gateway sends its
/// time.
pub(crate) fn admit_sample(
    sample: &mut Sample,
    gateway: &GatewayId,
    worn: &[Interval],
    arrival: Arrival,
    clock: Option<GatewayClock>,
) -> Result<(), Refusal> {
    validate_reading(sample).map_err(Refusal::malformed)?;
    let (said_us, taken) = (sample.device_time_us, Taken::of_sample(sample));
    let right_us = clock.map_or(said_us, |clock| clock.event_us(said_us, taken));
    sample.device_time_us = arrival.bounded_us(right_us);
    let offset_us = sample.device_time_us.saturating_sub(said_us);
    sample.device_offset_us = (clock.is_some() || offset_us != 0).then_some(offset_us);
    (sample.gateway_uptime_us, sample.gateway_boot) = (0, 0);
    sample.gateway_behind_us = None;
    validate_time(sample, arrival.latest_us, ClockBounds::INGEST)
        .map_err(|e| Refusal::new(Refusal::CLOCK, e))?;
    if sample.sequence == 0 || sample.sequence > SEQUENCE_MAX {
        return Err(Refusal::malformed(format!(
            "sequence: {} is not within 1 to {SEQUENCE_MAX}; for example 1",
            sample.sequence
        )));
    }
    agree("gateway", &sample.gateway, &gateway.id)?;
    sample.gateway.clone_from(&gateway.id);
    sample.ingest_time_us = arrival.now_us;
    let when = When::at(sample.device_time_us, doubt_us(clock, taken));
    attributed(&mut sample.patient, gateway, worn, when)
}

/// Corrects the gap's times and attributes it to a patient.
pub(crate) fn admit_gap(
    gap: &mut Gap,
    gateway: &GatewayId,
    worn: &[Interval],
    now_us: i64,
    clock: Option<GatewayClock>,
) -> Result<(), Refusal> {
    validate_identifier("device", &gap.device, "chest-belt-7").map_err(Refusal::malformed)?;
    validate_identifier("stream", &gap.stream, "heart-rate").map_err(Refusal::malformed)?;
    if !(1..=gap.last_sequence.min(SEQUENCE_MAX)).contains(&gap.first_sequence)
        || gap.last_sequence > SEQUENCE_MAX
    {
        return Err(Refusal::malformed(format!(
            "first_sequence, last_sequence: {} to {} is no stretch; for example 1 to 10",
            gap.first_sequence, gap.last_sequence
        )));
    }
    gap.gateway.clone_from(&gateway.id);
    // The core has dated what the gateway no longer has.
    if let Some(clock) = clock.filter(|_| gap.cause() != GapCause::NotKept) {
        clock.current().put_right_gap(gap, now_us);
    }
    let when = When {
        from_us: gap.from_time_us,
        to_us: gap.to_time_us.max(gap.from_time_us),
        // No field says when the gateway took the samples that it dropped.
        doubt_us: TOLERATED_US,
    };
    // Only the device in a gap counts, not the patient that the gateway names.
    gap.patient.clear();
    attributed(&mut gap.patient, gateway, worn, when)
}

/// The patients whom an alert may concern.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Concerned<'a> {
    /// The alert names a device, which was worn in these intervals.
    Device(&'a [Interval]),
    /// The alert names no device. True: the gateway served the patient that the alert names. If it
    /// names no patient either: the gateway belongs to the tenant.
    Cares(bool),
}

/// `when`: the corrected time of the alert.
pub(crate) fn admit_alert(
    alert: &mut EdgeAlert,
    gateway: &GatewayId,
    concerned: &Concerned<'_>,
    when: When,
) -> Result<(), Refusal> {
    validate_identifier("rule", &alert.rule, "spo2-low").map_err(Refusal::malformed)?;
    if !alert.acknowledged_by.is_empty() {
        validate_person("acknowledged_by", &alert.acknowledged_by).map_err(Refusal::malformed)?;
    }
    agree("gateway", &alert.gateway, &gateway.id)?;
    alert.gateway.clone_from(&gateway.id);
    // These are notes beside the alert. An alert is never refused for them.
    if alert.rules_subject.len() > SUBJECT_BYTES_MAX || !text::is_plain(&alert.rules_subject) {
        alert.rules_subject.clear();
    }
    if alert.traceparent.len() > TRACEPARENT_BYTES_MAX {
        alert.traceparent.clear();
    }
    // People read it in lists and messages.
    if !text::is_plain(&alert.summary) {
        alert.summary = text::line(&alert.summary).into_owned();
    }
    let mut end = alert.summary.len().min(SUMMARY_BYTES_MAX);
    while !alert.summary.is_char_boundary(end) {
        end -= 1;
    }
    alert.summary.truncate(end);
    match concerned {
        Concerned::Device(worn) => attributed(&mut alert.patient, gateway, worn, when),
        Concerned::Cares(true) => Ok(()),
        Concerned::Cares(false) => {
            let reason = if alert.patient.is_empty() {
                format!("gateway: `{}` is not registered", gateway.id)
            } else {
                format!(
                    "patient: `{}` had no device at gateway `{}`",
                    alert.patient, gateway.id
                )
            };
            Err(Refusal::new(Refusal::NOT_OWNED, reason))
        }
    }
}

/// Corrects the time of an alert in the same way as that of the sample that raised it. If no
/// plausible time results, the alert gets the present time: a wrong clock must not suppress it.
pub(crate) fn settle_time(alert: &mut EdgeAlert, arrival: Arrival, clock: Option<GatewayClock>) {
    let (said_us, taken) = (alert.time_us, Taken::of_alert(alert));
    let right_us = clock.map_or(said_us, |clock| clock.event_us(said_us, taken));
    let oldest_us = arrival.now_us.saturating_sub(ClockBounds::INGEST.past_us);
    alert.time_us = match arrival.bounded_us(right_us) {
        right_us if right_us > 0 && right_us >= oldest_us => right_us,
        _ => arrival.now_us,
    };
    // The beginning of the episode moves with the time of the transition and is never after it.
    if alert.since_us != 0 {
        let offset_us = alert.time_us.saturating_sub(said_us);
        alert.since_us = alert.since_us.saturating_add(offset_us);
    }
    if !(0..=alert.time_us).contains(&alert.since_us) {
        alert.since_us = 0;
    }
    // A person acknowledges after the alert and before its arrival, whatever the clock showed.
    if alert.acknowledged_us != 0 {
        let noted = Taken {
            wall_us: alert.acknowledged_us,
            ..Taken::default()
        };
        let noted_us = clock.map_or(noted.wall_us, |it| it.event_us(noted.wall_us, noted));
        alert.acknowledged_us = noted_us.min(arrival.now_us).max(alert.time_us);
    }
    (alert.gateway_uptime_us, alert.gateway_boot) = (0, 0);
    alert.gateway_behind_us = None;
    alert.ingest_time_us = arrival.now_us;
}

/// Fills in the patient. An entry that names another patient than the register is attributed to no
/// patient.
fn attributed(
    patient: &mut String,
    gateway: &GatewayId,
    worn: &[Interval],
    when: When,
) -> Result<(), Refusal> {
    let interval =
        attribute(worn, &gateway.id, when).map_err(|why| Refusal::new(why.kind(), why))?;
    agree("patient", patient, &interval.patient)?;
    patient.clone_from(&interval.patient);
    Ok(())
}

fn agree(field: &str, given: &str, known: &str) -> Result<(), Refusal> {
    if given.is_empty() || given == known {
        return Ok(());
    }
    Err(Refusal::new(
        Refusal::CONTRADICTS,
        format!("{field}: `{given}` is not what the register says; leave it empty"),
    ))
}

/// Logs refused entries for which the protocol has no index.
pub(crate) fn refuse(kind: &'static str, gateway: &GatewayId, refusal: Refusal) -> String {
    metrics::counter!("braid_ingest_refused_entries_total", "kind" => kind, "reason" => refusal.kind)
        .increment(1);
    tracing::warn!(kind, gateway = gateway.id, %refusal, "refused");
    refusal.reason
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use clocks::{Clocks, Sent};
    use contracts::vitals::{Metric, sample::Reading};

    use super::*;

    const NOW_US: i64 = 1_780_000_000_000_000;
    const NOW: Arrival = Arrival {
        now_us: NOW_US,
        latest_us: NOW_US,
    };

    /// The clock of a gateway that is ahead by this much.
    fn clock(ahead_us: i64) -> Option<GatewayClock> {
        let sent = Sent {
            wall_us: NOW_US + ahead_us,
            ..Sent::default()
        };
        Clocks::default().on_request("t", "gw", sent, NOW_US)
    }

    fn gateway() -> GatewayId {
        GatewayId {
            tenant: "t".into(),
            id: "gw".into(),
        }
    }

    fn worn() -> [Interval; 1] {
        [Interval {
            patient: "ann".into(),
            gateway: "gw".into(),
            from_us: i64::MIN,
            until_us: i64::MAX,
        }]
    }

    fn sample() -> Sample {
        let mut sample = Sample {
            device: "belt".into(),
            sequence: 1,
            metric: Metric::HeartRate as i32,
            device_time_us: NOW_US,
            reading: Some(Reading::Value(70.0)),
            ..Sample::default()
        };
        vitals::fill_defaults(&mut sample);
        sample
    }

    fn refused(change: impl FnOnce(&mut Sample, &mut GatewayId, &mut Interval)) -> Refusal {
        let (mut sample, mut gateway, mut worn) = (sample(), gateway(), worn());
        change(&mut sample, &mut gateway, &mut worn[0]);
        admit_sample(&mut sample, &gateway, &worn, NOW, None).unwrap_err()
    }

    #[test]
    fn an_owned_sample_is_filled() {
        let mut it = sample();
        admit_sample(&mut it, &gateway(), &worn(), NOW, None).unwrap();
        assert_eq!((it.patient.as_str(), it.gateway.as_str()), ("ann", "gw"));
        assert_eq!(it.ingest_time_us, NOW_US);
    }

    #[test]
    fn a_time_is_put_right_before_it_is_judged() {
        // A clock that is two days ahead, and fields that a gateway may not fill in itself.
        let ahead_us = 48 * 3_600_000_000;
        let mut it = Sample {
            device_time_us: NOW_US + ahead_us,
            gateway_time_us: NOW_US + ahead_us,
            device_offset_us: Some(7),
            ..sample()
        };
        let admit = |it: &mut Sample, clock| admit_sample(it, &gateway(), &worn(), NOW, clock);
        admit(&mut it, clock(ahead_us)).unwrap();
        assert_eq!(it.device_time_us, NOW_US);
        assert_eq!(it.gateway_time_us, NOW_US + ahead_us);
        assert_eq!(it.device_offset_us, Some(-ahead_us));
        let mut old = Sample {
            device_offset_us: Some(7),
            ..sample()
        };
        admit(&mut old, None).unwrap();
        assert_eq!(old.device_offset_us, None);
    }

    #[test]
    fn no_reading_is_stored_in_the_future_and_none_is_refused_for_it() {
        let future_us = ClockBounds::INGEST.future_us;
        let stored = |ahead_us: i64, arrival, clock| {
            let mut it = Sample {
                device_time_us: NOW_US + ahead_us,
                gateway_time_us: NOW_US,
                ..sample()
            };
            admit_sample(&mut it, &gateway(), &worn(), arrival, clock).unwrap();
            assert_eq!(
                it.device_time_us,
                NOW_US + ahead_us + it.device_offset_us.unwrap_or_default()
            );
            it.device_time_us - NOW_US
        };
        for ahead_us in [future_us + 1, 3_600_000_000, 48 * 3_600_000_000] {
            assert_eq!(stored(ahead_us, NOW, clock(0)), 0);
            assert_eq!(
                stored(ahead_us, NOW, None),
                0,
                "a gateway that says no time"
            );
        }
        assert_eq!(stored(future_us, NOW, clock(0)), future_us);
        // The core's own clock was set back by an hour. The readings are right.
        let set_back = Arrival {
            now_us: NOW_US - 3_600_000_000,
            latest_us: NOW_US,
        };
        assert_eq!(stored(0, set_back, None), 0);
    }

    #[test]
    fn what_is_nobodys_is_filled_and_kept_apart() {
        let mut it = sample();
        let mut worn = worn();
        worn[0].until_us = NOW_US;
        let refusal = admit_sample(&mut it, &gateway(), &worn, NOW, None).unwrap_err();
        assert!(refusal.is_kept_apart() && refusal.kind == "not-assigned");
        assert_eq!((it.patient.as_str(), it.gateway.as_str()), ("", "gw"));
        assert_eq!(it.ingest_time_us, NOW_US, "it can go on as it is");
        // The gateway's clock is two hours behind. The belt changed hands an hour ago, and the
        // reading is older than that.
        let hour_us = 3_600_000_000;
        worn[0].until_us = NOW_US - hour_us;
        let mut wrong = Sample {
            device_time_us: NOW_US - 4 * hour_us,
            gateway_time_us: NOW_US - 4 * hour_us,
            ..sample()
        };
        let behind = clock(-2 * hour_us);
        admit_sample(&mut wrong, &gateway(), &worn, NOW, behind).unwrap();
        assert_eq!(wrong.device_time_us, NOW_US - 2 * hour_us);
        assert_eq!(wrong.patient, "ann");
    }

    #[test]
    fn a_refusal_has_a_kind_and_names_the_field() {
        type Change = fn(&mut Sample, &mut GatewayId, &mut Interval);
        let cases: [(Change, &str, &str); 10] = [
            (
                |_, gw, _| gw.id = "other".into(),
                "other-gateway",
                "the device was with another gateway",
            ),
            (
                |_, _, worn| worn.from_us = NOW_US + 1,
                "not-assigned",
                "no patient wore",
            ),
            (
                |s, _, _| s.sensor_sequence = Some(1 << 63),
                Refusal::MALFORMED,
                "sensor_sequence",
            ),
            (
                |s, _, _| s.patient = "bob".into(),
                Refusal::CONTRADICTS,
                "patient",
            ),
            (
                |s, _, _| s.gateway = "bob".into(),
                Refusal::CONTRADICTS,
                "gateway",
            ),
            (|s, _, _| s.sequence = 0, Refusal::MALFORMED, "sequence"),
            (
                |s, _, _| s.sequence = u64::MAX,
                Refusal::MALFORMED,
                "sequence",
            ),
            (|s, _, _| s.unit = "kg".into(), Refusal::MALFORMED, "unit"),
            (|s, _, _| s.metric = 9_999, Refusal::MALFORMED, "metric"),
            (
                |s, _, _| s.device_time_us = 1,
                Refusal::CLOCK,
                "device_time_us",
            ),
        ];
        for (change, kind, field) in cases {
            let refusal = refused(change);
            assert_eq!(refusal.kind, kind, "{refusal}");
            assert!(refusal.reason.starts_with(field), "{refusal}");
            let of_the_form = [Refusal::MALFORMED, Refusal::CLOCK].contains(&kind);
            assert_eq!(refusal.is_kept_apart(), !of_the_form, "{refusal}");
        }
    }

    #[test]
    fn an_alert_without_device_needs_a_patient_of_the_gateway() {
        let mut alert = EdgeAlert {
            rule: "gateway-battery".into(),
            patient: "ann".into(),
            summary: "ä".repeat(1000),
            traceparent: "0".repeat(1 << 20),
            ..EdgeAlert::default()
        };
        let admit = |alert: &mut EdgeAlert, concerned: Concerned<'_>| {
            admit_alert(alert, &gateway(), &concerned, When::at(NOW_US, 0))
        };
        assert!(admit(&mut alert.clone(), Concerned::Cares(false)).is_err());
        admit(&mut alert, Concerned::Cares(true)).unwrap();
        assert_eq!(alert.gateway, "gw");
        assert_eq!(alert.summary.len(), SUMMARY_BYTES_MAX);
        assert_eq!(alert.traceparent, "");
        let mut forged = EdgeAlert {
            summary: "low\n2026-01-01  a-2  active\u{1b}[2J".into(),
            rules_subject: "patient:\tann".into(),
            ..alert.clone()
        };
        admit(&mut forged, Concerned::Cares(true)).unwrap();
        let shown = "low\\n2026-01-01  a-2  active\\u{1b}[2J";
        assert_eq!((&*forged.summary, &*forged.rules_subject), (shown, ""));
        alert.device = "belt".into();
        alert.patient = "bob".into();
        let worn = worn();
        let refused = admit(&mut alert.clone(), Concerned::Device(&worn)).unwrap_err();
        assert_eq!(refused.kind, Refusal::CONTRADICTS);
        alert.patient.clear();
        admit(&mut alert, Concerned::Device(&worn)).unwrap();
        assert_eq!(alert.patient, "ann");
    }

    #[test]
    fn an_alert_of_no_time_is_of_now() {
        let (day_us, minute_us) = (24 * 3_600_000_000, 60_000_000);
        for (time_us, settled_us) in [
            (NOW_US - day_us, NOW_US - day_us),
            (NOW_US + minute_us, NOW_US + minute_us),
            (NOW_US + 3 * minute_us, NOW_US),
            (NOW_US + 2 * day_us, NOW_US),
            (NOW_US - 500 * day_us, NOW_US),
            (0, NOW_US),
            (i64::MIN, NOW_US),
            (i64::MAX, NOW_US),
        ] {
            let mut alert = EdgeAlert {
                time_us,
                ..EdgeAlert::default()
            };
            settle_time(&mut alert, NOW, None);
            assert_eq!(alert.time_us, settled_us, "{time_us}");
            assert_eq!(alert.ingest_time_us, NOW_US);
        }
    }

    #[test]
    fn an_alert_moves_with_the_sample_that_raised_it() {
        for ahead_us in [3_600_000_000, -3_600_000_000] {
            let said_us = NOW_US + ahead_us - 1_000_000;
            let mut alert = EdgeAlert {
                time_us: said_us,
                gateway_time_us: NOW_US + ahead_us,
                ..EdgeAlert::default()
            };
            let mut sample = Sample {
                device_time_us: said_us,
                gateway_time_us: NOW_US + ahead_us,
                ..sample()
            };
            settle_time(&mut alert, NOW, clock(ahead_us));
            admit_sample(&mut sample, &gateway(), &worn(), NOW, clock(ahead_us)).unwrap();
            assert_eq!(alert.time_us, NOW_US - 1_000_000);
            assert_eq!(alert.time_us, sample.device_time_us);
        }
    }

    #[test]
    fn an_acknowledgement_lies_between_its_alert_and_its_arrival() {
        let ahead_us = 3_600_000_000;
        let said_us = NOW_US + ahead_us - 60_000_000;
        let settled = |acknowledged_us| {
            let mut alert = EdgeAlert {
                time_us: said_us,
                gateway_time_us: said_us,
                acknowledged_by: "Ada Carer".into(),
                acknowledged_us,
                ..EdgeAlert::default()
            };
            settle_time(&mut alert, NOW, clock(ahead_us));
            alert.acknowledged_us - NOW_US
        };
        assert_eq!(settled(said_us + 30_000_000), -30_000_000);
        assert_eq!(settled(1), -60_000_000);
        assert_eq!(settled(i64::MAX), 0);
    }

    #[test]
    fn the_name_beside_an_acknowledgement_has_no_control_characters() {
        let mut alert = EdgeAlert {
            rule: "fall".into(),
            acknowledged_by: "Ada\u{1b}[2J".into(),
            ..EdgeAlert::default()
        };
        let cares = Concerned::Cares(true);
        let refused = admit_alert(&mut alert, &gateway(), &cares, When::at(NOW_US, 0));
        assert_eq!(refused.unwrap_err().kind, Refusal::MALFORMED);
    }

    #[test]
    fn a_gap_is_a_stretch_of_an_owned_stream() {
        let gap = |first, last| Gap {
            device: "belt".into(),
            stream: "ecg".into(),
            first_sequence: first,
            last_sequence: last,
            ..Gap::default()
        };
        let admit = |mut gap: Gap| admit_gap(&mut gap, &gateway(), &worn(), NOW_US, None);
        admit(gap(1, 1)).unwrap();
        admit(gap(5, 9)).unwrap();
        for bad in [gap(0, 3), gap(4, 3), gap(1, u64::MAX)] {
            assert!(admit(bad.clone()).is_err(), "{bad:?}");
        }
        let nobodys = admit_gap(&mut gap(1, 1), &gateway(), &[], NOW_US, None);
        assert_eq!(nobodys.unwrap_err().kind, "unknown-device");
    }
}
