//! Rules on their way to gateways: each gateway gets the rules of its own patients, and no other
//! gateway does.

use crate::world::{PATIENCE, Running, World, gateway};
use bus::{Bus, Record, Topic};
use contracts::{
    alerts::{Alert, AlertState, Document},
    vitals::{
        FollowRulesRequest, FollowRulesResponse, HighAlert, Priority,
        ingest_service_client::IngestServiceClient,
    },
};
use prost::Message;
use service_kit::{
    grpc::channel,
    tls::{Identity, PeerId},
};
use store::{AlertsBatch, DEFAULT_TENANT, DeviceEntry, PatientEntry, RULES, Spo2Scale, TEAM};
use tonic::{Code, Status, Streaming};

async fn put(world: &World, kind: &str, tenant: &str, subject: &str, version: u32, body: &str) {
    let document = Document {
        kind: kind.into(),
        tenant: tenant.into(),
        subject: subject.into(),
        version,
        author: "ada".into(),
        reason: "for the test".into(),
        body: body.into(),
        ..Document::default()
    };
    world.store.put_document(&document).await.unwrap();
}

async fn follow(
    world: &World,
    running: &Running,
    id: PeerId,
) -> Result<Streaming<FollowRulesResponse>, Status> {
    follow_with(world, running, id, FollowRulesRequest::default()).await
}

async fn follow_with(
    world: &World,
    running: &Running,
    id: PeerId,
    request: FollowRulesRequest,
) -> Result<Streaming<FollowRulesResponse>, Status> {
    let files = world.authority.issue(&id, &[]).unwrap();
    let address = running.context.address("grpc").await.unwrap();
    let identity = Identity::load(&files).unwrap();
    let url = format!("https://127.0.0.1:{}", address.port());
    let mut client = IngestServiceClient::new(channel(&url, Some(&identity)).unwrap());
    let answers = client.follow_rules(request).await?;
    Ok(answers.into_inner())
}

async fn next(answers: &mut Streaming<FollowRulesResponse>) -> Result<FollowRulesResponse, Status> {
    let answer = tokio::time::timeout(PATIENCE, answers.message()).await;
    Ok(answer
        .expect("an answer comes")?
        .expect("the stream goes on"))
}

/// The patients of an answer, with subject and version of each.
fn told(answer: &FollowRulesResponse) -> Vec<(&str, &str, u32)> {
    let patients = answer.patients.iter();
    patients
        .map(|it| {
            let mut documents = answer.documents.iter();
            let document = documents.find(|document| document.subject == it.subject);
            let version = document.map_or(0, |document| document.version);
            (it.patient.as_str(), it.subject.as_str(), version)
        })
        .collect()
}

/// A device of a gateway whose name also exists in the other tenant.
fn of_tenant_two(gateway: &str, device: &str, patient: &str) -> DeviceEntry {
    DeviceEntry {
        id: device.into(),
        tenant: "two".into(),
        gateway: gateway.into(),
        patient: patient.into(),
        registered_us: 0,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_is_told_what_holds_for_its_patients_and_whenever_that_changes() {
    let world = World::new().await;
    let put = async |kind, subject, version, body| {
        put(&world, kind, DEFAULT_TENANT, subject, version, body).await;
    };
    put(RULES, "default", 1, "of all").await;
    put(
        RULES,
        "patient:somebody",
        1,
        "of no patient of this gateway",
    )
    .await;
    let running = world.start().await;
    let mut answers = follow(&world, &running, gateway("gw")).await.unwrap();
    let answer = next(&mut answers).await.unwrap();
    let all = |version| ["0", "1", "2", "3"].map(|n| (format!("patient-{n}"), version));
    let owned = |answer: &FollowRulesResponse| -> Vec<(String, u32)> {
        let told = told(answer).into_iter();
        told.map(|(patient, _, version)| (patient.to_owned(), version))
            .collect()
    };
    assert_eq!(owned(&answer), all(1));
    assert_eq!(answer.documents.len(), 1, "once for all four");
    assert_eq!(answer.documents[0].body, "of all", "as somebody put it");
    assert_eq!(answer.patients[2].devices, ["belt-2"]);
    let worn = answer.intervals.iter();
    let mut worn: Vec<_> = worn
        .map(|it| (&*it.device, &*it.patient, it.until_us))
        .collect();
    worn.sort_unstable();
    assert_eq!(worn[2], ("belt-2", "patient-2", i64::MAX));
    assert!(answer.has_intervals && worn.len() == 4);

    // The answer changes with a version, a team, a clinician's choice, and an assignment.
    put(RULES, "default", 2, "of all, anew").await;
    assert_eq!(owned(&next(&mut answers).await.unwrap()), all(2));
    put(RULES, "group:copd", 1, "of the group").await;
    put(
        TEAM,
        "default",
        1,
        r#"{"contacts": [], "patients": {"patient-1": {"group": "copd"}}}"#,
    )
    .await;
    let answer = next(&mut answers).await.unwrap();
    assert_eq!(told(&answer)[1], ("patient-1", "group:copd", 1));
    let entry = PatientEntry {
        id: "patient-1".into(),
        tenant: DEFAULT_TENANT.into(),
        name: "Ben".into(),
        spo2_scale: Spo2Scale::Two,
        ..PatientEntry::default()
    };
    world.store.put_patient(&entry).await.unwrap();
    let answer = next(&mut answers).await.unwrap();
    let scales: Vec<u32> = answer.patients.iter().map(|it| it.spo2_scale).collect();
    assert_eq!(scales, [1, 2, 1, 1]);
    let scope = store::Scope::Service;
    assert!(world.store.remove_device(&scope, "belt-3").await.unwrap());
    assert_eq!(next(&mut answers).await.unwrap().patients.len(), 3);
    running.stop().await;
    let ended = tokio::time::timeout(PATIENCE, answers.message())
        .await
        .unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_is_told_of_other_gateways_or_tenants() {
    let world = World::new().await;
    for (tenant, body) in [(DEFAULT_TENANT, "of one"), ("two", "of two")] {
        put(&world, RULES, tenant, "default", 1, body).await;
        put(&world, RULES, tenant, "patient:patient-0", 1, body).await;
    }
    let running = world.start().await;
    let follow = async |id| follow(&world, &running, id).await;
    // A gateway of the same tenant without that patient, and a gateway of the same name in another
    // tenant.
    for id in [gateway("other"), PeerId::gateway("two", "gw")] {
        let mut answers = follow(id.clone()).await.unwrap();
        let answer = next(&mut answers).await.unwrap();
        let nothing = FollowRulesResponse {
            has_intervals: true,
            digest: answer.digest,
            ..FollowRulesResponse::default()
        };
        assert_eq!(answer, nothing, "{id}");
    }
    let zoe = of_tenant_two("gw-2", "belt-9", "zoe");
    world.store.put_device(&zoe).await.unwrap();
    let mut answers = follow(PeerId::gateway("two", "gw-2")).await.unwrap();
    let answer = next(&mut answers).await.unwrap();
    assert_eq!(told(&answer), [("zoe", "default", 1)]);
    assert_eq!(answer.documents[0].body, "of two");
    let refused = follow(PeerId::service("dashboard")).await.unwrap_err();
    assert_eq!(refused.code(), Code::PermissionDenied);

    // Revoked while it follows, and revoked from the start.
    let mut answers = follow(gateway("gw")).await.unwrap();
    next(&mut answers).await.unwrap();
    let revocation = serde_json::to_string(&store::Revocation::default()).unwrap();
    put(
        &world,
        store::REVOCATION,
        DEFAULT_TENANT,
        "gw",
        1,
        &revocation,
    )
    .await;
    let ended = tokio::time::timeout(PATIENCE, answers.message())
        .await
        .unwrap();
    assert_eq!(ended.unwrap_err().code(), Code::PermissionDenied);
    let mut answers = follow(gateway("gw")).await.unwrap();
    assert_eq!(
        next(&mut answers).await.unwrap_err().code(),
        Code::PermissionDenied
    );
    running.stop().await;
}

/// A damaged document concerns one subject. Its version before applies, and all others are sent.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_document_that_cannot_be_read_keeps_no_other_from_the_gateways() {
    let world = World::new().await;
    let tenant = DEFAULT_TENANT;
    put(&world, RULES, tenant, "default", 1, "of all").await;
    put(&world, RULES, tenant, "patient:patient-1", 1, "before").await;
    put(&world, RULES, tenant, "patient:patient-1", 2, "damaged").await;
    put(&world, RULES, "two", "default", 1, "damaged").await;
    let rows = rusqlite::Connection::open(world.dir.path().join("store.db")).unwrap();
    rows.execute_batch(
        "DROP TRIGGER documents_immutable;
         UPDATE documents SET payload = x'0a' WHERE version = 2 OR tenant = 'two'",
    )
    .unwrap();

    let running = world.start().await;
    let mut answers = follow(&world, &running, gateway("gw")).await.unwrap();
    let answer = next(&mut answers).await.unwrap();
    let told = told(&answer);
    assert_eq!(told[0], ("patient-0", "default", 1));
    assert_eq!(told[1], ("patient-1", "patient:patient-1", 1));
    let warnings = running.context.health().warnings();
    let mut warnings = warnings.into_iter();
    let said = warnings.find(|(name, _)| *name == "damaged-documents");
    let said = said.expect("a warning").1.says;
    assert!(said.contains("version 1 holds for it"), "{said}");
    assert!(said.contains("default of tenant two"), "{said}");
    running.stop().await;
}

/// Stores a revision of an alert of `patient-0`, and publishes it as alerting does.
async fn change(world: &World, running: &Running, revision: u32, state: AlertState) {
    let by = match state {
        AlertState::Active => "",
        _ => "Ada Nurse",
    };
    let alert = Alert {
        id: "a1".into(),
        patient: "patient-0".into(),
        device: "belt-0".into(),
        rule: "spo2-very-low".into(),
        priority: Priority::High.into(),
        state: state.into(),
        acknowledged_by: by.into(),
        revision,
        ..Alert::default()
    };
    let record = Record::new("patient-0", alert.encode_to_vec());
    let batch = AlertsBatch {
        transitions: vec![alert],
        states: Vec::new(),
    };
    world.store.write_alerts(batch, Vec::new()).await.unwrap();
    let published = running.bus.publish(Topic::Alerts, vec![record]);
    published.await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_gateway_learns_which_high_alerts_of_its_patients_are_acknowledged() {
    let world = World::new().await;
    let running = world.start().await;
    let takes = FollowRulesRequest {
        takes_high_alerts: true,
        ..FollowRulesRequest::default()
    };
    let mut answers = follow_with(&world, &running, gateway("gw"), takes)
        .await
        .unwrap();
    let mut of_other = follow_with(&world, &running, gateway("other"), takes)
        .await
        .unwrap();
    // An older gateway would take an answer without rules for "no rules".
    let mut of_older = follow(&world, &running, gateway("gw")).await.unwrap();
    let first = next(&mut of_older).await.unwrap();
    assert_eq!((first.patients.len(), &first.high_alerts), (4, &None));

    // A gateway that has the rules gets an answer without them, and one with other rules all.
    for (known_digest, patients) in [(first.digest, 0), (first.digest ^ 1, 4)] {
        let knows = FollowRulesRequest {
            known_digest,
            ..takes
        };
        let mut answers = follow_with(&world, &running, gateway("gw"), knows)
            .await
            .unwrap();
        let answer = next(&mut answers).await.unwrap();
        assert_eq!(answer.patients.len(), patients);
        assert_eq!(answer.only_high_alerts, patients == 0);
    }

    let mut rules = 0;
    let mut alerts = async || loop {
        let answer = next(&mut answers).await.unwrap();
        rules += usize::from(!answer.only_high_alerts);
        assert_eq!(answer.patients.is_empty(), answer.only_high_alerts);
        if let Some(alerts) = answer.high_alerts {
            let alerts = alerts.alerts.into_iter();
            break alerts
                .map(|it| (it.rule, it.acknowledged))
                .collect::<Vec<_>>();
        }
    };
    let rule = || "spo2-very-low".to_owned();
    assert_eq!(alerts().await, []);
    change(&world, &running, 1, AlertState::Active).await;
    assert_eq!(alerts().await, [(rule(), false)]);
    change(&world, &running, 2, AlertState::Acknowledged).await;
    assert_eq!(alerts().await, [(rule(), true)]);
    change(&world, &running, 3, AlertState::Resolved).await;
    assert_eq!(alerts().await, []);
    assert_eq!(rules, 1, "the rules go once");
    running.stop().await;

    let mut of_others: Vec<HighAlert> = Vec::new();
    while let Ok(Some(answer)) = of_other.message().await {
        of_others.extend(answer.high_alerts.unwrap_or_default().alerts);
    }
    assert_eq!(of_others, []);
    assert!(of_older.message().await.is_err(), "nothing more for it");
}
