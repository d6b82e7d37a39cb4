//! Why a flow of a gateway takes which accesses, asked as a browser does.

use crate::browser::{ANYWHERE, client, cookie_of};
use crate::ward::Ward;
use contracts::alerts::Document;
use contracts::paths::{AccessUse, End, PathReport, PathState};
use contracts::query::{ExplainSteeringRequest, ExplainSteeringResponse};
use dashboard::explain::{Described, SUBJECT, explain};
use store::{AuditQuery, Role, STEERING, Scope};
use tonic::Code;

const BODY: &str = r#"{"format":1,
    "access":[{"name":"lte","kind":"cellular","cap_gb":5,"reset_day":15}],
    "rule":[{"name":"<b>updates</b>","match":{"destination":["*.example.org"]},
             "mode":"priority","accesses":["wifi","cellular"]}]}"#;

fn report(path: &str, rtt_ms: f64, month_bytes: u64) -> PathReport {
    PathReport {
        gateway: "g1".to_owned(),
        path: path.to_owned(),
        end: End::Gateway.into(),
        state: PathState::Available.into(),
        time_us: contracts::now_us(),
        interval_ms: 1_000,
        rtt_ms,
        sequence: 1,
        steering_version: 1,
        access: Some(AccessUse {
            month_bytes,
            ..AccessUse::default()
        }),
        ..PathReport::default()
    }
}

fn document(tenant: &str, version: u32, body: &str) -> Document {
    Document {
        kind: STEERING.to_owned(),
        tenant: tenant.to_owned(),
        subject: SUBJECT.to_owned(),
        version,
        author: "eve".to_owned(),
        reason: "why".to_owned(),
        body: body.to_owned(),
        ..Document::default()
    }
}

fn asked(gateway: &str, destination: &str) -> ExplainSteeringRequest {
    ExplainSteeringRequest {
        gateway: gateway.to_owned(),
        destination: destination.to_owned(),
        ..ExplainSteeringRequest::default()
    }
}

async fn ask(
    ward: &Ward,
    name: &str,
    request: ExplainSteeringRequest,
) -> Result<ExplainSteeringResponse, Code> {
    let mut client = client(ward, &cookie_of(ward, name).await);
    let answer = client.explain_steering(request).await;
    answer
        .map(|answer| answer.into_inner())
        .map_err(|status| status.code())
}

/// A viewer, another tenant's gateway, one without paths, and flows that are none.
async fn refuses_what_is_not_to_be_answered(ward: &Ward) {
    let refused = async |name: &str, request| ask(ward, name, request).await.unwrap_err();
    let good = || asked("g1", "deb.example.org:443");
    assert_eq!(refused("vera", good()).await, Code::PermissionDenied);
    assert_eq!(refused("carl", asked("g2", "a.org")).await, Code::NotFound);
    assert_eq!(refused("carl", asked("", "a.org")).await, Code::NotFound);
    let without_paths = refused("carl", asked("g3", "a.org")).await;
    assert_eq!(without_paths, Code::FailedPrecondition);
    let long = "x".repeat(300);
    for destination in ["", "a\nb", &long] {
        let code = refused("carl", asked("g1", destination)).await;
        assert_eq!(code, Code::InvalidArgument, "{destination:?}");
    }
    let urgency = "now".to_owned();
    let unknown = ExplainSteeringRequest { urgency, ..good() };
    assert_eq!(refused("carl", unknown).await, Code::InvalidArgument);
}

/// Rules of the gateway's groups, and those of a group that it is not in.
async fn rules_of_groups(ward: &Ward) {
    let body = r#"{"format":1,
        "group":[{"name":"ambulances","gateways":["g1"]},{"name":"homes","gateways":["home-*"]}],
        "rule":[{"name":"at home","match":{"group":["homes"]},"accesses":["wifi"]},
                {"name":"moving","match":{"group":["ambulances"]},"accesses":["lte"]}]}"#;
    ward.store
        .put_document(&document("default", 2, body))
        .await
        .unwrap();
    let moved = PathReport {
        steering_version: 2,
        time_us: contracts::now_us(),
        sequence: 2,
        ..report("lte", 45.0, 0)
    };
    ward.paths("g1", vec![moved]).await;
    let own = ask(ward, "carl", asked("g1", "a.org")).await.unwrap();
    assert!(
        own.text
            .contains("g1\nof groups: ambulances\nrule \"moving\""),
        "{}",
        own.text
    );
    let group = "homes".to_owned();
    let other = ExplainSteeringRequest {
        group,
        ..asked("g1", "a.org")
    };
    let other = ask(ward, "carl", other).await.unwrap();
    assert!(
        other
            .text
            .contains("g1\nas of group homes\nrule \"at home\""),
        "{}",
        other.text
    );
}

/// The core does not have the file, so it is asked for.
async fn a_file_of_the_gateways_own(ward: &Ward) {
    let moved = PathReport {
        steering_is_own: true,
        steering_version: 0,
        time_us: contracts::now_us(),
        sequence: 3,
        ..report("lte", 45.0, 0)
    };
    ward.paths("g1", vec![moved]).await;
    let refused = ask(ward, "carl", asked("g1", "a.org")).await;
    assert_eq!(refused.unwrap_err(), Code::FailedPrecondition);
    let flow = Described {
        destination: "a.org",
        ..Described::default()
    };
    let (store, flow) = (&*ward.store, flow.flow().unwrap());
    let now_us = contracts::now_us();
    let without = explain(store, "default", ("g1", None), &flow, now_us).await;
    let without = without.unwrap_err().to_string();
    assert!(without.contains("--gateway g1 --file FILE"), "{without}");
    let own = r#"{"format":1,"rule":[{"name":"own","accesses":["lte"]}]}"#;
    let own = multipath::steering_rules::Document::from_json(own, "own").unwrap();
    let by_file = explain(store, "default", ("g1", Some(own)), &flow, now_us).await;
    let text = by_file.unwrap().text;
    assert!(
        text.starts_with("by a file, as g1 obeys one of its own\nrule \"own\""),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_who_act_get_the_answer_of_the_command_line() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    ward.account("carl", Role::Clinician).await;
    ward.patient("ann", "Ann Berg", "default", "g1").await;
    ward.patient("zoe", "Zoe Elsewhere", "elsewhere", "g2")
        .await;
    ward.patient("new", "Nora New", "default", "g3").await;
    for (tenant, body) in [("default", BODY), ("elsewhere", r#"{"format":1}"#)] {
        let first = document(tenant, 1, body);
        ward.store.put_document(&first).await.unwrap();
    }
    let reports = [
        ("wifi", 20.0, 1),
        ("lte", 45.0, 4_900_000_000),
        ("sat0", 600.0, 0),
    ];
    let reports = reports.map(|(path, rtt_ms, bytes)| report(path, rtt_ms, bytes));
    ward.paths("g1", reports.to_vec()).await;
    let ask = async |name: &str, request| ask(&ward, name, request).await;

    let answer = ask("carl", asked("g1", "deb.example.org:443"))
        .await
        .unwrap();
    let (answered, reported) = answer.text.trim_end().rsplit_once('\n').unwrap();
    assert!(reported.starts_with("reported ") && reported.ends_with(" s ago"));
    assert_eq!(
        format!("{answered}\n"),
        "steering version 1, in force at g1\nrule \"<b>updates</b>\": mode priority\n  \
         1. wifi: active, 100 %\n  2. lte: spill, 0 %\n  \
         lte (cellular): chosen, allowed; 0.100 GB of the cap are left until day 15\n  \
         sat0 (satellite): rejected, the rule does not list it\n  \
         wifi (wifi): chosen, allowed\n"
    );
    assert_eq!((answer.version, answer.gateway_version), (1, 1));
    let described = Described {
        destination: "deb.example.org:443",
        ..Described::default()
    };
    let (store, now_us) = (&*ward.store, contracts::now_us());
    let without_age = |text: &str| text.rsplit_once("reported ").unwrap().0.to_owned();
    let flow = described.flow().unwrap();
    let by_command = explain(store, "default", ("g1", None), &flow, now_us)
        .await
        .unwrap();
    let by_command = ExplainSteeringResponse {
        version: by_command.version,
        gateway_version: by_command.gateway_version,
        text: without_age(&by_command.text),
        decision: serde_json::to_string(&by_command.decision).unwrap(),
    };
    let answer = ExplainSteeringResponse {
        text: without_age(&answer.text),
        ..answer
    };
    assert_eq!(answer, by_command, "one function answers both");

    // A flow that no rule names, and an alert.
    let free = ask("carl", asked("g1", "10.0.0.7")).await.unwrap();
    assert!(free.text.contains("no rule: mode auto"), "{}", free.text);
    let alert = ExplainSteeringRequest {
        urgency: "alert".to_owned(),
        ..asked("g1", "deb.example.org:443")
    };
    let alert = ask("carl", alert).await.unwrap();
    assert!(
        alert.text.contains("mode redundant, 2 copies"),
        "{}",
        alert.text
    );

    rules_of_groups(&ward).await;

    // A newer version is named while the gateway obeys the older one.
    let taken_back = document("default", 3, "");
    ward.store.put_document(&taken_back).await.unwrap();
    let older = ask("carl", asked("g1", "deb.example.org:443"))
        .await
        .unwrap();
    let head = "steering version 2, in force at g1; version 3 is put\n";
    assert!(older.text.starts_with(head), "{}", older.text);

    refuses_what_is_not_to_be_answered(&ward).await;
    let query = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let log = ward.store.audit(&Scope::tenant("default"), &query).await;
    let explained = |it: &store::AuditEntry| it.action == "explain steering";
    let mut log = log.unwrap().into_iter().filter(explained);
    assert!(log.any(|it| it.who == "carl" && it.detail == "g1 deb.example.org:443"));
    assert!(log.all(|it| it.who == "carl"));
    a_file_of_the_gateways_own(&ward).await;
    ward.end().await;
}
