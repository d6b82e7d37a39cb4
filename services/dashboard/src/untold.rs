//! Says, before an outage, who would not be told of it: on the page, in `/readyz` and so by `braid
//! doctor`.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use contracts::query::WarningSeverity;
use service_kit::{Context, Warning};

use crate::{
    live::Live,
    to_people::{Kinds, Recipients, SharedRecipients},
    warnings::warning,
};

/// A change is said within this time.
const LOOK_EACH: Duration = Duration::from_secs(5);
const CODE: &str = "outage-untold";
const NO_WAY: &str = "nobody is told when alerting fails: the dashboard has no mail server";
const TO_DO: &str = "set --smtp, --email-from and --email-to of the dashboard as those of alerting, \
                     put a team with addresses, or set --canary-webhook";
/// Tenants that a warning names; the rest is counted.
const NAMED_MAX: usize = 3;

/// Sentences by tenant; an empty tenant stands for everybody. A webhook reaches the people behind
/// it for every tenant.
fn untold(kinds: Kinds, recipients: &Recipients, now_us: i64) -> Vec<(String, String)> {
    match (kinds.webhook, kinds.mail) {
        (true, _) => Vec::new(),
        (false, false) => vec![(String::new(), NO_WAY.to_owned())],
        (false, true) => recipients.untold(now_us).into_iter().collect(),
    }
}

/// Runs until shutdown.
pub(crate) async fn watch(
    kinds: Kinds,
    recipients: SharedRecipients,
    live: Arc<Live>,
    context: Context,
) {
    let handle = context.health().warning(CODE);
    let mut warned = BTreeSet::new();
    loop {
        let found = untold(kinds, &recipients.lock(), live.now_us());
        handle.set(warning_of(&found));
        metrics::gauge!("braid_dashboard_outage_untold").set(found.len() as f64);
        warned = say(&live, found, &warned);
        tokio::select! {
            () = context.shutdown().requested() => return,
            () = tokio::time::sleep(LOOK_EACH) => {}
        }
    }
}

/// Returns the tenants that are warned now.
fn say(live: &Live, found: Vec<(String, String)>, warned: &BTreeSet<String>) -> BTreeSet<String> {
    let mut warnings = live.warnings.lock();
    let now: BTreeSet<String> = found.iter().map(|(tenant, _)| tenant.clone()).collect();
    for ended in warned.difference(&now) {
        warnings.end(ended, CODE);
    }
    for (tenant, says) in found {
        let mut letters = says.chars();
        let first = letters.next().into_iter().flat_map(char::to_uppercase);
        let text: String = first.chain(letters).chain(['.']).collect();
        warnings.raise(&tenant, warning(CODE, WarningSeverity::Warning, 0, text));
    }
    now
}

fn warning_of(found: &[(String, String)]) -> Option<Warning> {
    let named: Vec<&str> = found.iter().take(NAMED_MAX).map(|(_, it)| &**it).collect();
    let more = match found.len().saturating_sub(NAMED_MAX) {
        0 => String::new(),
        more => format!("; and {more} more tenants"),
    };
    (!named.is_empty()).then(|| Warning {
        says: format!("{}{more}", named.join("; ")),
        to_do: TO_DO.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_way_and_a_tenant_without_people_are_said() {
        let mut recipients = Recipients::new(&[]);
        recipients.on_tenants(["one".to_owned()].into());
        let found = |webhook, mail| untold(Kinds { webhook, mail }, &recipients, 0);
        assert_eq!(found(false, false), [(String::new(), NO_WAY.to_owned())]);
        let one = found(false, true);
        assert_eq!(one.len(), 1);
        assert_eq!(one[0].0, "one");
        assert_eq!(found(true, false), []);
        assert_eq!(warning_of(&[]), None);
        let many = vec![("t".to_owned(), "s".to_owned()); 5];
        let says = warning_of(&many).map(|it| it.says);
        assert_eq!(says.as_deref(), Some("s; s; s; and 2 more tenants"));
    }
}
