//! Alerts that can never be stored, or about which no decision can.

use bus::{Bus, Delivery, Topic, dead_letter};
use contracts::alerts::Alert;
use prost::Message;

/// Buries the alert as a record of the topic `alerts` that this group could not take. False: the
/// service ends before that.
pub(crate) async fn bury_alert(
    bus: &dyn Bus,
    alert: &Alert,
    group: &str,
    reason: &str,
    now_us: i64,
    ending: impl Future<Output = ()>,
) -> bool {
    let letter = Delivery {
        topic: Topic::Alerts,
        partition: 0,
        offset: 0,
        key: alert.patient.clone(),
        value: alert.encode_to_vec().into(),
        headers: Vec::new(),
        published_us: now_us,
    };
    dead_letter::bury(bus, &letter, group, reason, ending).await
}
