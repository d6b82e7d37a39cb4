//! Every call of the dashboard, made by people of two tenants: neither sees data of the other.
//!
//! The calls are read from the contract and from the source of the routes. A new call fails this
//! test until it is described here.

#[path = "tenants/administered.rs"]
mod administered;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::browser::{ANYWHERE, Client, ask, client, cookie_of, until, within};
use crate::ward::{Ward, alert, heart_rate};
use contracts::alerts::{Document, Notice};
use contracts::paths::{End, Link, PathReport};
use contracts::query::watch_response::Update;
use contracts::query::{
    AcknowledgeAlertRequest, ExplainSteeringRequest, GetPathsRequest, GetProofRequest,
    GetSeriesRequest, ListAlertsRequest, ListDocumentsRequest, ListLinksRequest,
    ListNoticesRequest, ListPatientsRequest, ListQuarantineRequest, PutDocumentRequest,
    SetLinkRequest, WatchRequest, WithdrawAcknowledgementRequest,
};
use contracts::vitals::Priority;
use service_kit::tls::authority::LocalAuthority;
use store::{NoticesBatch, Role, Scope};

const CONTRACTS: [&str; 3] = [
    include_str!("../../../../proto/braid/query/v1/query.proto"),
    include_str!("../../../../proto/braid/identity/v1/identity.proto"),
    include_str!("../../../../proto/braid/patients/v1/patients.proto"),
];
const ROUTES: [&str; 3] = [
    include_str!("../../src/to_browser/sign_in.rs"),
    include_str!("../../src/from_gateway.rs"),
    include_str!("../../src/to_browser/federated.rs"),
];

/// Numbers of the events during a watch.
static EVENTS: AtomicU64 = AtomicU64::new(100);

/// Part of every name and value of the tenant whose data must not leak.
const MARK: &str = "walled";
/// The account of that tenant.
const OWNER: &str = "owner-account";
const VALUE: f64 = 123.456;

fn words_after<'a>(text: &'a str, before: &str, end: char) -> Vec<&'a str> {
    text.split(before)
        .skip(1)
        .filter_map(|rest| rest.split(end).next())
        .collect()
}

fn is_of_them(answer: &str) -> bool {
    answer.contains(MARK) || answer.contains(OWNER) || answer.contains(&VALUE.to_string())
}

fn report(gateway: &str) -> PathReport {
    PathReport {
        gateway: gateway.to_owned(),
        path: "wifi".to_owned(),
        end: End::Gateway.into(),
        time_us: contracts::now_us(),
        interval_ms: 1_000,
        sequence: 1,
        ..PathReport::default()
    }
}

/// A patient with data for every call, all under names with the mark.
async fn furnish(ward: &Ward, mark: &str, tenant: &str) {
    let name = |what: &str| format!("{what}-{mark}");
    ward.patient(&name("p"), &name("Name"), tenant, &name("g"))
        .await;
    let mut raised = alert(&name("p"), &name("a"), &name("summary"), Priority::High);
    raised.gateway = name("g");
    ward.alert(raised.clone()).await;
    for (kind, subject) in [
        ("silence", name("s")),
        ("team", "default".to_owned()),
        ("rules", format!("patient:{}", name("p"))),
    ] {
        let document = Document {
            kind: kind.to_owned(),
            tenant: tenant.to_owned(),
            subject,
            version: 1,
            author: name("author"),
            reason: name("reason"),
            until_us: contracts::now_us() + 3_600_000_000,
            body: "{}".to_owned(),
            ..Document::default()
        };
        ward.store.put_document(&document).await.unwrap();
    }
    let notice = Notice {
        id: name("n"),
        alert: Some(raised),
        tenant: tenant.to_owned(),
        channel: "webhook".to_owned(),
        ..Notice::default()
    };
    let batch = NoticesBatch {
        notices: vec![notice],
        ..NoticesBatch::default()
    };
    ward.store.write_notices(batch).await.unwrap();
    ward.quarantined(tenant, &name("g"), &name("stray"), 3)
        .await;
    ward.links.lock().push(Link {
        gateway: name("g"),
        name: "wifi".to_owned(),
        up: true,
        ..Link::default()
    });
}

/// New data during a watch.
async fn news(ward: &Ward, mark: &str, sequence: u64, value: f64) {
    let (patient, gateway) = (format!("p-{mark}"), format!("g-{mark}"));
    let sample = contracts::vitals::Sample {
        gateway: gateway.clone(),
        ..heart_rate(&patient, sequence, value)
    };
    ward.vitals(vec![sample]).await;
    ward.paths(&gateway, vec![report(&gateway)]).await;
    let raised = alert(
        &patient,
        &format!("a{sequence}-{mark}"),
        mark,
        Priority::Low,
    );
    ward.alert(raised).await;
}

/// The text of an answer or of its error.
fn described<T: std::fmt::Debug>(answer: Result<tonic::Response<T>, tonic::Status>) -> String {
    match answer {
        Ok(answer) => format!("{:?}\n", answer.into_inner()),
        Err(status) => format!("refused: {:?}\n", status.code()),
    }
}

/// All updates of a watch during events of both tenants.
async fn watched(ward: &Ward, client: &mut Client, patient: String) -> String {
    let mut heard = String::new();
    let mut stream = client
        .watch(WatchRequest { patient })
        .await
        .unwrap()
        .into_inner();
    // The marked tenant's events come first. A viewer who has received the last own event
    // was sent all visible ones.
    let first = EVENTS.fetch_add(3, Ordering::Relaxed);
    for n in first..first + 3 {
        news(ward, MARK, n, VALUE).await;
        news(ward, "plain", n, 70.0).await;
    }
    let last = format!("a{}-", first + 2);
    let (mut alerts, mut reports) = (0, 0);
    until("news of the own tenant", &mut stream, |update| {
        heard += &format!("{update:?}\n");
        match update {
            Update::Alert(alert) if alert.id.starts_with(&last) => alerts += 1,
            Update::Paths(paths) => reports += paths.reports.len(),
            _ => {}
        }
        (alerts > 0 && reports > 1).then_some(())
    })
    .await;
    heard
}

/// Calls one method for the marked tenant's data, by name and in full. Errors count as answers.
async fn call(ward: &Ward, cookie: &str, method: &str) -> String {
    let mut client = client(ward, cookie);
    let (patient, gateway, alert) = (
        format!("p-{MARK}"),
        format!("g-{MARK}"),
        format!("a-{MARK}"),
    );
    let (from_us, to_us) = (
        contracts::now_us() - 3_600_000_000,
        contracts::now_us() + 3_600_000_000,
    );
    let mut heard = String::new();
    macro_rules! add {
        ($answer:expr) => {
            heard += &described($answer.await)
        };
    }
    match method {
        "ListPatients" => add!(client.list_patients(ListPatientsRequest {})),
        "GetSeries" => add!(client.get_series(GetSeriesRequest {
            patient,
            from_us,
            to_us,
            ..GetSeriesRequest::default()
        })),
        "GetProof" => add!(client.get_proof(GetProofRequest {
            patient,
            from_us,
            to_us,
        })),
        "Watch" => heard += &watched(ward, &mut client, patient).await,
        "ListAlerts" => {
            for patient in [patient, String::new()] {
                add!(client.list_alerts(ListAlertsRequest {
                    patient,
                    include_resolved: true,
                    limit: 100,
                    ..ListAlertsRequest::default()
                }));
            }
        }
        "AcknowledgeAlert" => add!(client.acknowledge_alert(AcknowledgeAlertRequest {
            id: alert,
            note: "n".to_owned(),
        })),
        "WithdrawAcknowledgement" => {
            let request = WithdrawAcknowledgementRequest { id: alert };
            add!(client.withdraw_acknowledgement(request));
        }
        "PutDocument" => add!(client.put_document(PutDocumentRequest {
            kind: "silence".to_owned(),
            subject: format!("s-{MARK}"),
            version: 2,
            reason: "r".to_owned(),
            until_us: to_us,
            body: "{}".to_owned(),
            dry_run: false,
        })),
        "ListDocuments" => {
            let named = [
                ("silence", format!("s-{MARK}")),
                ("rules", format!("patient:{patient}")),
            ];
            let all = ["silence", "team", "rules"].map(|kind| (kind, String::new()));
            for (kind, subject) in named.into_iter().chain(all) {
                let kind = kind.to_owned();
                add!(client.list_documents(ListDocumentsRequest { kind, subject }));
            }
        }
        "ListNotices" => add!(client.list_notices(ListNoticesRequest { alert })),
        "ListQuarantine" => add!(client.list_quarantine(ListQuarantineRequest::default())),
        "GetPaths" => {
            for gateway in [gateway, String::new()] {
                add!(client.get_paths(GetPathsRequest {
                    gateway,
                    from_us,
                    to_us,
                }));
            }
        }
        "ListLinks" => add!(client.list_links(ListLinksRequest {})),
        "SetLink" => {
            for gateway in [gateway, String::new()] {
                let (name, up) = ("wifi".to_owned(), false);
                add!(client.set_link(SetLinkRequest { gateway, name, up }));
            }
        }
        "ExplainSteering" => add!(client.explain_steering(ExplainSteeringRequest {
            gateway,
            destination: "example.org:443".to_owned(),
            ..ExplainSteeringRequest::default()
        })),
        other => return administered::administer(ward, cookie, other).await,
    }
    heard
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_way_leads_to_another_tenants_data() {
    let dir = tempfile::tempdir().unwrap();
    let identities = dir.path().join("identities");
    LocalAuthority::open_or_create(&identities).unwrap();
    let authority = ["--authority", identities.to_str().unwrap()];
    let ward = Ward::start(dir.path(), ANYWHERE, &authority).await;
    for (name, tenant) in [(OWNER, "default"), ("other", "elsewhere")] {
        ward.account(name, Role::Administrator).await;
        let mut account = ward.store.account(name).await.unwrap().unwrap();
        account.tenant = tenant.to_owned();
        ward.store.put_account(&account).await.unwrap();
    }
    furnish(&ward, MARK, "default").await;
    furnish(&ward, "plain", "elsewhere").await;
    news(&ward, MARK, 1, VALUE).await;
    news(&ward, "plain", 1, 70.0).await;
    let (own, other) = (
        cookie_of(&ward, OWNER).await,
        cookie_of(&ward, "other").await,
    );
    // Both wards contain their patients before the calls begin.
    for cookie in [&own, &other] {
        let mut stream = client(&ward, cookie)
            .watch(WatchRequest::default())
            .await
            .unwrap()
            .into_inner();
        until("the ward", &mut stream, |update| match update {
            Update::Ward(ward) => (!ward.patients.is_empty()).then_some(()),
            _ => None,
        })
        .await;
    }

    let methods = CONTRACTS.map(|contract| words_after(contract, "rpc ", '('));
    assert!(
        methods.iter().all(|of_one| of_one.len() >= 3),
        "{methods:?}"
    );
    let mut methods = methods.concat();
    // One is about the caller's own account only, and the other about the installation.
    methods.retain(|method| !["ChangePassword", "ListMetrics"].contains(method));
    let mut answers = BTreeMap::new();
    // The other tenant calls first, because calls of the owner change the visible data.
    for (who, cookie) in [("other", &other), ("own", &own)] {
        for method in &methods {
            let heard = within(method, call(&ward, cookie, method)).await;
            answers.insert((who, *method), heard);
        }
        if who == "other" {
            assert!(ward.acknowledged.lock().is_empty(), "acknowledged");
            assert!(ward.links.lock().iter().all(|link| link.up), "cut");
            let scope = Scope::tenant("default");
            let subject = format!("s-{MARK}");
            let history = ward.store.document_history(&scope, "silence", &subject);
            assert_eq!(history.await.unwrap().len(), 1, "put");
        }
    }
    for ((who, method), heard) in &answers {
        assert_eq!(
            is_of_them(heard),
            *who == "own",
            "{who} asked {method}: {heard}"
        );
        assert!(!heard.contains("Unauthenticated"), "{method}: {heard}");
    }

    let routes = ROUTES.map(|of_one| words_after(of_one, ".route(\"", '"'));
    assert!(routes.iter().all(|of_one| of_one.len() >= 3), "{routes:?}");
    for route in routes.concat() {
        for method in [http::Method::GET, http::Method::POST] {
            let cookie = cookie_of(&ward, "other").await;
            let headers = [("cookie", cookie.as_str())];
            let answer = ask(ward.address, method, route, "{}", &headers).await;
            let heard = format!(
                "{:?} {}",
                answer.headers(),
                String::from_utf8_lossy(answer.body())
            );
            assert!(!is_of_them(&heard), "{route}: {heard}");
        }
    }
    ward.end().await;
}
