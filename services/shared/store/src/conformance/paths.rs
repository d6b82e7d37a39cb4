use contracts::paths::{End, PathReport};

use super::{Harness, SECOND_US, START_US, ok};
use crate::{
    Expire, GatewayEntry, LatestPathKey, PATHS_PER_GATEWAY_MAX, PathsQuery, Scope, Written,
    each_latest_path,
};

fn report(gateway: &str, path: &str, end: End, sequence: u64) -> PathReport {
    PathReport {
        gateway: gateway.into(),
        path: path.into(),
        end: end as i32,
        // Beyond what a signed integer holds.
        session: u64::MAX - 5,
        sequence,
        time_us: START_US + sequence.cast_signed() * SECOND_US,
        sent_bytes: 1000 * sequence,
        rtt_ms: 12.5,
        ..PathReport::default()
    }
}

fn query(gateway: Option<&str>, from_s: i64, to_s: i64, limit: usize) -> PathsQuery {
    PathsQuery {
        gateway: gateway.map(str::to_owned),
        from_us: START_US + from_s * SECOND_US,
        to_us: START_US + to_s * SECOND_US,
        limit,
    }
}

pub async fn path_reports_are_unique_and_scoped(harness: &dyn Harness) {
    let store = harness.start().await.store;
    for (gateway, tenant) in [("g1", "t1"), ("g2", "t2")] {
        let entry = GatewayEntry {
            id: gateway.into(),
            tenant: tenant.into(),
        };
        ok(store.put_gateway(&entry).await);
    }
    let reports: Vec<PathReport> = (1..=10)
        .map(|n| {
            report(
                if n % 2 == 0 { "g1" } else { "g2" },
                "wifi",
                End::Gateway,
                n,
            )
        })
        .collect();
    ok(store.write_paths(reports.clone(), Vec::new()).await);
    let mut again = reports[..2].to_vec();
    again.push(report("g1", "wifi", End::Proxy, 2));
    again.push(report("g1", "lte", End::Gateway, 2));
    let mut other_session = report("g1", "wifi", End::Gateway, 2);
    other_session.session = 1;
    again.push(other_session);
    let written = ok(store.write_paths(again, Vec::new()).await);
    assert_eq!(
        written,
        Written {
            new: 3,
            duplicate: 2
        }
    );

    let g2: Vec<PathReport> = reports
        .iter()
        .filter(|r| r.gateway == "g2")
        .cloned()
        .collect();
    let all = Scope::Service;
    assert_eq!(
        ok(store.paths(&all, &query(Some("g2"), 0, 100, 0)).await),
        g2,
        "in order of time"
    );
    assert_eq!(
        ok(store.paths(&all, &query(Some("g2"), 3, 7, 0)).await),
        g2[1..3]
    );
    assert_eq!(
        ok(store.paths(&all, &query(Some("g2"), 0, 100, 2)).await),
        g2[3..],
        "the newest ones"
    );
    assert_eq!(
        ok(store.paths(&all, &query(None, 0, 100, 0)).await).len(),
        13
    );
    let t2 = Scope::tenant("t2");
    assert_eq!(ok(store.paths(&t2, &query(None, 0, 100, 0)).await), g2);
    assert_eq!(
        ok(store.paths(&t2, &query(Some("g1"), 0, 100, 0)).await),
        []
    );
    assert_eq!(
        ok(store.expire(Expire::Paths, START_US + 9 * SECOND_US).await),
        11
    );
    assert_eq!(
        ok(store.paths(&all, &query(None, 0, 100, 0)).await),
        reports[8..]
    );
    let latest = ok(store.latest_paths(&all, None).await);
    assert!(
        latest
            .iter()
            .all(|it| it.time_us >= START_US + 9 * SECOND_US)
    );
}

/// A gateway with a certificate for an unregistered name may report.
pub async fn a_namesakes_reports_are_not_shown_to_whom_the_name_belongs(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let of = |tenant: &str, path: &str, sequence| PathReport {
        tenant: tenant.into(),
        ..report("g1", path, End::Gateway, sequence)
    };
    let own = [of("", "ethernet", 1), of("t1", "lte", 2)];
    let mut reports = own.to_vec();
    reports.push(of("t2", "forged", 3));
    ok(store.write_paths(reports.clone(), Vec::new()).await);
    let all = Scope::Service;
    assert_eq!(ok(store.latest_paths(&all, None).await).len(), 3);
    let entry = GatewayEntry {
        id: "g1".into(),
        tenant: "t1".into(),
    };
    ok(store.put_gateway(&entry).await);
    for scope in [all, Scope::tenant("t1")] {
        assert_eq!(ok(store.latest_paths(&scope, None).await), own);
        let found = store.paths(&scope, &query(None, 0, 100, 0)).await;
        assert_eq!(ok(found), own);
    }
}

pub async fn the_newest_report_of_each_path_is_known(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let newest = [
        report("g1", "lte", End::Gateway, 3),
        report("g1", "wifi", End::Gateway, 7),
        report("g1", "wifi", End::Proxy, 2),
        report("g2", "wifi", End::Gateway, 1),
    ];
    let mut reports = newest.to_vec();
    reports.push(report("g1", "wifi", End::Gateway, 5));
    reports.push(report("g1", "wifi", End::Proxy, 1));
    ok(store.write_paths(reports, Vec::new()).await);
    // One that comes late is not the newest.
    ok(store
        .write_paths(vec![report("g1", "lte", End::Gateway, 2)], Vec::new())
        .await);
    assert_eq!(ok(store.latest_paths(&Scope::Service, None).await), newest);
    assert_eq!(
        ok(store.latest_paths(&Scope::Service, Some("g2")).await),
        newest[3..]
    );
    let nobody = Scope::tenant("nobody");
    assert_eq!(
        ok(store.latest_paths(&nobody, None).await),
        [],
        "unregistered gateways are the services' only"
    );
}

pub async fn a_report_of_the_future_hides_no_later_one(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let now_us = contracts::now_us();
    let at = |sequence, time_us| PathReport {
        time_us,
        ..report("g1", "wifi", End::Gateway, sequence)
    };
    let (ahead, right) = (at(1, now_us + 3600 * SECOND_US), at(2, now_us));
    for one in [ahead, right.clone(), at(3, now_us - SECOND_US)] {
        ok(store.write_paths(vec![one], Vec::new()).await);
    }
    assert_eq!(ok(store.latest_paths(&Scope::Service, None).await), [right]);
}

pub async fn a_gateway_has_a_bounded_number_of_newest_reports(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let all = Scope::Service;
    let most = PATHS_PER_GATEWAY_MAX as u64;
    ok(store
        .write_paths(vec![report("g2", "wifi", End::Gateway, 1)], Vec::new())
        .await);
    // Ever new names, of both ends, in one batch and over several.
    let named = |number: u64, end| report("g1", &format!("path-{number:04}"), end, number);
    let first: Vec<PathReport> = (1..=3 * most).map(|n| named(n, End::Gateway)).collect();
    ok(store.write_paths(first, Vec::new()).await);
    for number in 3 * most + 1..=4 * most {
        let both = [End::Gateway, End::Proxy].map(|end| named(number, end));
        ok(store.write_paths(both.into(), Vec::new()).await);
    }
    let latest = ok(store.latest_paths(&all, Some("g1")).await);
    let newest: Vec<PathReport> = (3 * most + 1..=4 * most)
        .flat_map(|number| [End::Gateway, End::Proxy].map(|end| named(number, end)))
        .collect();
    assert_eq!(
        latest, newest,
        "those that were silent for longest are gone"
    );
    let reports = ok(store.paths(&all, &query(Some("g1"), 0, 1_000, 0)).await);
    assert_eq!(reports.len() as u64, 5 * most, "every report is kept");
    assert_eq!(ok(store.latest_paths(&all, Some("g2")).await).len(), 1);
}

pub async fn newest_reports_are_read_in_pages(harness: &dyn Harness) {
    let store = harness.start().await.store;
    let mut reports = Vec::new();
    for gateway in ["a", "b", "c-2", "c1"] {
        for path in ["lte", "wifi"] {
            for end in [End::Gateway, End::Proxy] {
                reports.push(report(gateway, path, end, reports.len() as u64 + 1));
            }
        }
    }
    ok(store.write_paths(reports.clone(), Vec::new()).await);
    let all = Scope::Service;
    for limit in [1, 3, 16, 17] {
        let (mut after, mut read) = (Some(LatestPathKey::first()), Vec::new());
        while let Some(key) = after {
            let (page, next) = ok(store.latest_paths_page(&all, 0, &key, limit).await);
            assert!(page.len() <= limit);
            read.extend(page);
            after = next;
        }
        assert_eq!(read, reports, "pages of {limit}");
    }
    let from_us = reports[9].time_us;
    let mut recent = Vec::new();
    ok(each_latest_path(&*store, &all, from_us, |report| recent.push(report)).await);
    assert_eq!(recent, reports[9..]);
    let nobody = Scope::tenant("nobody");
    let first = LatestPathKey::first();
    let page = store.latest_paths_page(&nobody, 0, &first, 10).await;
    assert_eq!(ok(page), (Vec::new(), None));
}
