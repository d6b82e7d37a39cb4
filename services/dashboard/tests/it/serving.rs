//! The dashboard on the embedded engines, requested as a browser does.

use crate::browser::{ANYWHERE, Client, client, cookie, cookie_of, post, sign_in, until, within};
use crate::ward::{PASSWORD, Ward, alert, heart_rate};
use contracts::alerts::AlertState;
use contracts::paths::{End, Link, PathReport};
use contracts::query::watch_response::Update;
use contracts::query::{
    AcknowledgeAlertRequest, GetSeriesRequest, ListLinksRequest, ListPatientsRequest,
    SetLinkRequest, WatchRequest, WatchResponse, WithdrawAcknowledgementRequest,
};
use contracts::vitals::Priority;
use store::{AuditQuery, Role, Scope};
use tonic::Code;

fn watch(patient: &str) -> WatchRequest {
    WatchRequest {
        patient: patient.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing_in_gives_a_cookie_and_guessing_gets_slow() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Clinician).await;

    let refused = client(&ward, "braid_session=00")
        .list_patients(ListPatientsRequest {})
        .await
        .unwrap_err();
    assert_eq!(refused.code(), Code::Unauthenticated);

    let accepted = sign_in(ward.address, "ada", PASSWORD).await;
    assert_eq!(accepted.status(), 200);
    assert_eq!(
        accepted.body().as_ref(),
        br#"{"name":"ada","role":"clinician"}"#
    );
    let set = accepted.headers()["set-cookie"].to_str().unwrap();
    assert!(
        set.contains("HttpOnly") && set.contains("SameSite=Strict"),
        "{set}"
    );
    client(&ward, &cookie(&accepted))
        .list_patients(ListPatientsRequest {})
        .await
        .unwrap();

    let elsewhere = [("sec-fetch-site", "cross-site")];
    let body = format!(r#"{{"name":"ada","password":"{PASSWORD}"}}"#);
    assert_eq!(
        post(ward.address, "/api/sign-in", &body, &elsewhere)
            .await
            .status(),
        403
    );

    for _ in 0..5 {
        assert_eq!(sign_in(ward.address, "ada", "wrong").await.status(), 401);
    }
    let slowed = sign_in(ward.address, "ada", PASSWORD).await;
    assert_eq!(slowed.status(), 429, "even the right password waits");
    assert!(slowed.headers().contains_key("retry-after"));

    let audit = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let rows = ward
        .store
        .audit(&Scope::tenant("default"), &audit)
        .await
        .unwrap();
    let count = |action: &str| {
        rows.iter()
            .filter(|row| row.who == "ada" && row.action == action)
            .count()
    };
    assert_eq!(
        (
            count("sign in"),
            count("sign in refused"),
            count("read ward")
        ),
        (1, 5, 1)
    );
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_link_signs_in_once() {
    let dir = tempfile::tempdir().unwrap();
    let code = "0123456789abcdef0123456789abcdef";
    let ward = Ward::start(dir.path(), ANYWHERE, &["--sign-in-code", code]).await;
    ward.account(dashboard::accounts::FIRST_ACCOUNT, Role::Administrator)
        .await;
    let body = format!(r#"{{"code":"{code}"}}"#);
    assert_eq!(
        post(ward.address, "/api/sign-in-code", r#"{"code":"x"}"#, &[])
            .await
            .status(),
        401
    );
    assert_eq!(
        post(ward.address, "/api/sign-in-code", &body, &[])
            .await
            .status(),
        200
    );
    assert_eq!(
        post(ward.address, "/api/sign-in-code", &body, &[])
            .await
            .status(),
        401
    );
    ward.end().await;
}

/// Waits for a sample, an alert and a path report. Each must belong to the own tenant.
async fn own_updates_arrive(stream: &mut tonic::Streaming<WatchResponse>) {
    let (mut sample, mut alarm, mut paths) = (false, false, false);
    until("sample, alert and path", stream, |update| {
        match update {
            Update::Samples(update) => {
                assert!(update.samples.iter().all(|s| s.patient == "p1"));
                sample |= update.samples.iter().any(|s| s.sequence == 2);
            }
            Update::Alert(alert) => {
                assert_eq!(alert.id, "a1");
                alarm = true;
            }
            Update::Paths(update) => {
                assert!(update.reports.iter().all(|r| r.gateway == "g1"));
                paths |= !update.reports.is_empty();
            }
            Update::Ward(_) | Update::Alerts(_) => {}
        }
        (sample && alarm && paths).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_viewer_sees_what_arrives_and_only_of_the_own_tenant() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    ward.patient("z9", "Zoe Lind", "elsewhere", "g9").await;
    ward.vitals(vec![heart_rate("p1", 1, 71.0)]).await;
    ward.vitals(vec![heart_rate("z9", 1, 99.0)]).await;

    let mut client = client(&ward, &cookie_of(&ward, "vera").await);
    let mut stream = client.watch(watch("p1")).await.unwrap().into_inner();
    let patients = until("the ward", &mut stream, |update| match update {
        Update::Ward(ward) if ward.patients.iter().any(|p| !p.latest.is_empty()) => {
            Some(ward.patients)
        }
        _ => None,
    })
    .await;
    assert_eq!(patients.len(), 1, "the other tenant's patient is not there");
    assert_eq!(
        (patients[0].name.as_str(), patients[0].gateway.as_str()),
        ("Ada Berg", "g1")
    );
    assert!(patients[0].news2.as_ref().unwrap().partial);

    ward.vitals(vec![heart_rate("z9", 2, 98.0)]).await;
    ward.alert(alert("z9", "za", "not for you", Priority::High))
        .await;
    ward.vitals(vec![heart_rate("p1", 2, 135.0)]).await;
    ward.alert(alert("p1", "a1", "Heart rate 135", Priority::High))
        .await;
    let report = |gateway: &str| PathReport {
        gateway: gateway.to_owned(),
        path: "wifi".to_owned(),
        end: End::Gateway.into(),
        time_us: contracts::now_us(),
        interval_ms: 1_000,
        sequence: 1,
        ..PathReport::default()
    };
    ward.paths("g9", vec![report("g9")]).await;
    ward.paths("g1", vec![report("g1")]).await;

    own_updates_arrive(&mut stream).await;

    let series = |patient: &str| GetSeriesRequest {
        patient: patient.to_owned(),
        from_us: contracts::now_us() - 60_000_000,
        to_us: contracts::now_us() + 1_000_000,
        ..GetSeriesRequest::default()
    };
    let own = client.get_series(series("p1")).await.unwrap().into_inner();
    assert_eq!(own.series[0].values, [71.0, 135.0]);
    let other = client.get_series(series("z9")).await.unwrap().into_inner();
    assert!(other.series.is_empty(), "another tenant's data");
    let backwards = GetSeriesRequest {
        to_us: 0,
        ..series("p1")
    };
    assert_eq!(
        client.get_series(backwards).await.unwrap_err().code(),
        Code::InvalidArgument
    );

    let audit = AuditQuery {
        patient: Some("p1".to_owned()),
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let rows = ward
        .store
        .audit(&Scope::tenant("default"), &audit)
        .await
        .unwrap();
    let mut actions: Vec<_> = rows.iter().map(|row| row.action.as_str()).collect();
    actions.dedup();
    assert_eq!(
        actions,
        ["read series", "watch", "assign device"],
        "newest first"
    );
    ward.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn viewers_look_and_clinicians_act() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("vera", Role::Viewer).await;
    ward.account("carl", Role::Clinician).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    ward.patient("z9", "Zoe Lind", "elsewhere", "g9").await;
    ward.alert(alert("p1", "a1", "Heart rate 135", Priority::High))
        .await;
    ward.alert(alert("z9", "za", "not yours", Priority::High))
        .await;
    ward.links.lock().push(Link {
        gateway: "g1".to_owned(),
        name: "wifi".to_owned(),
        up: true,
        ..Link::default()
    });
    let acknowledge = |id: &str| AcknowledgeAlertRequest {
        id: id.to_owned(),
        note: "seen".to_owned(),
    };
    let cut = SetLinkRequest {
        gateway: "g1".to_owned(),
        name: "wifi".to_owned(),
        up: false,
    };

    let mut vera = client(&ward, &cookie_of(&ward, "vera").await);
    assert_eq!(
        vera.acknowledge_alert(acknowledge("a1"))
            .await
            .unwrap_err()
            .code(),
        Code::PermissionDenied
    );
    assert_eq!(
        vera.set_link(cut.clone()).await.unwrap_err().code(),
        Code::PermissionDenied
    );
    assert!(ward.acknowledged.lock().is_empty() && ward.links.lock()[0].up);

    let mut carl = client(&ward, &cookie_of(&ward, "carl").await);
    assert_eq!(
        carl.acknowledge_alert(acknowledge("za"))
            .await
            .unwrap_err()
            .code(),
        Code::NotFound
    );
    let answer = carl
        .acknowledge_alert(acknowledge("a1"))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(answer.alert.unwrap().state(), AlertState::Acknowledged);
    {
        let calls = ward.acknowledged.lock();
        assert_eq!(calls.len(), 1);
        assert_eq!(
            (
                calls[0].id.as_str(),
                calls[0].by.as_str(),
                calls[0].note.as_str()
            ),
            ("a1", "carl", "seen")
        );
    }
    takes_back(&ward, &mut vera, &mut carl).await;
    carl.set_link(cut).await.unwrap();
    let links = vera
        .list_links(ListLinksRequest {})
        .await
        .unwrap()
        .into_inner()
        .links;
    assert!(!links[0].up);
    ward.end().await;
}

/// It was the wrong row. A viewer cannot take it back, and both calls are in the audit log.
async fn takes_back(ward: &Ward, vera: &mut Client, carl: &mut Client) {
    let withdraw = |id: &str| WithdrawAcknowledgementRequest { id: id.to_owned() };
    for (client, id, code) in [
        (vera, "a1", Code::PermissionDenied),
        (&mut *carl, "za", Code::NotFound),
    ] {
        let refused = client.withdraw_acknowledgement(withdraw(id)).await;
        assert_eq!(refused.unwrap_err().code(), code);
    }
    let answer = carl.withdraw_acknowledgement(withdraw("a1")).await.unwrap();
    let withdrawn = answer.into_inner().alert.unwrap();
    assert_eq!(withdrawn.state(), AlertState::Active);
    let everything = AuditQuery {
        patient: None,
        from_us: 0,
        to_us: i64::MAX,
        limit: 0,
    };
    let audit = ward.store.audit(&Scope::Service, &everything);
    let audit = audit.await.unwrap();
    let of_a1 = audit.iter().filter(|entry| entry.detail == "a1");
    let mut actions: Vec<&str> = of_a1.map(|entry| entry.action.as_str()).collect();
    actions.sort_unstable();
    assert_eq!(actions, ["acknowledge alert", "withdraw acknowledgement"]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn signing_out_ends_the_stream_and_so_does_the_end_of_the_service() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.account("ada", Role::Clinician).await;
    ward.account("bob", Role::Clinician).await;
    let end_of = |mut stream: tonic::Streaming<WatchResponse>| async move {
        loop {
            match stream.message().await {
                Ok(Some(_)) => {}
                Ok(None) => panic!("the stream ended without a reason"),
                Err(status) => return status.code(),
            }
        }
    };
    let ada = cookie_of(&ward, "ada").await;
    let bob = cookie_of(&ward, "bob").await;
    let adas = client(&ward, &ada)
        .watch(watch(""))
        .await
        .unwrap()
        .into_inner();
    let bobs = client(&ward, &bob)
        .watch(watch(""))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(
        post(ward.address, "/api/sign-out", "{}", &[("cookie", &ada)])
            .await
            .status(),
        204
    );
    assert_eq!(
        within("ada's stream", end_of(adas)).await,
        Code::Unauthenticated
    );

    let context = ward.context.clone();
    context.shutdown().request();
    assert_eq!(
        within("bob's stream", end_of(bobs)).await,
        Code::Unavailable
    );
    within("the end", ward.end()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn administrators_read_the_log_and_nobody_rewrites_it() {
    let dir = tempfile::tempdir().unwrap();
    let ward = Ward::start(dir.path(), ANYWHERE, &[]).await;
    ward.patient("p1", "Ada Berg", "default", "g1").await;
    for (name, role) in [
        ("vera", Role::Viewer),
        ("carl", Role::Clinician),
        ("ada", Role::Administrator),
    ] {
        ward.account(name, role).await;
        let cookie = cookie_of(&ward, name).await;
        let series = GetSeriesRequest {
            patient: "p1".to_owned(),
            from_us: 1,
            to_us: 2,
            ..GetSeriesRequest::default()
        };
        client(&ward, &cookie).get_series(series).await.unwrap();
        let mut client = crate::browser::administration(&ward, &cookie);
        let asked = contracts::identity::ListAuditRequest {
            patient: "p1".to_owned(),
            ..Default::default()
        };
        let answer = client.list_audit(asked).await;
        let revoked = client.revoke_gateway(contracts::identity::RevokeGatewayRequest {
            gateway: "g1".to_owned(),
            reason: "lost".to_owned(),
        });
        let revoked = revoked.await;
        if role != Role::Administrator {
            assert_eq!(answer.unwrap_err().code(), Code::PermissionDenied, "{name}");
            assert_eq!(
                revoked.unwrap_err().code(),
                Code::PermissionDenied,
                "{name}"
            );
            continue;
        }
        revoked.unwrap();
        let rows = answer.unwrap().into_inner().entries;
        let read: Vec<_> = rows.iter().map(|row| (&*row.who, &*row.action)).collect();
        let expected = [
            ("ada", "read audit"),
            ("ada", "read series"),
            ("carl", "read series"),
            ("vera", "read series"),
            ("braid", "assign device"),
        ];
        assert_eq!(
            read, expected,
            "newest first, the reading of the log included"
        );
    }
    ward.end().await;
}
