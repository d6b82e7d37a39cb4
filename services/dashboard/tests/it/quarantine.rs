//! The page lists readings of no patient, and the number of readings that the list omits.

use crate::browser::{ANYWHERE, client, cookie_of};
use crate::ward::Ward;
use contracts::query::ListQuarantineRequest;
use store::{AuditQuery, Role, Scope};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readings_of_no_patient_are_listed_and_the_list_counts_what_it_leaves_out() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("eve", Role::Viewer).await;
    for (device, count) in [("belt", 3), ("clip", 5), ("ring", 7)] {
        ward.quarantined("default", "gw-1", device, count).await;
    }
    ward.quarantined("elsewhere", "gw-9", "theirs", 9).await;
    let mut client = client(&ward, &cookie_of(&ward, "eve").await);
    let mut list = async |limit| {
        let answer = client
            .list_quarantine(ListQuarantineRequest { limit })
            .await;
        answer.unwrap().into_inner()
    };
    let all = list(0).await;
    let mut devices: Vec<_> = all
        .cases
        .iter()
        .map(|it| (&*it.device, it.entries))
        .collect();
    devices.sort_unstable();
    assert_eq!(devices, [("belt", 3), ("clip", 5), ("ring", 7)]);
    assert_eq!(
        (all.entries, all.cases_omitted, all.entries_omitted),
        (15, 0, 0)
    );
    assert!(
        all.cases
            .iter()
            .all(|it| it.kind == "unknown-device" && it.gateway == "gw-1")
    );

    let some = list(2).await;
    let listed: u64 = some.cases.iter().map(|it| it.entries).sum();
    assert_eq!(
        (some.cases.len(), some.cases_omitted, some.entries),
        (2, 1, 15)
    );
    assert_eq!(some.entries_omitted, 15 - listed);
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let audit = ward.store.audit(&Scope::tenant("default"), &query).await;
    let audit = audit.unwrap();
    let reads = audit.iter().filter(|it| it.action == "read quarantine");
    assert_eq!(reads.count(), 2, "each answer is in the log");
    ward.end().await;
}
