//! A gateway's certificates: by a token, once; renewed by itself; revoked while samples flow;
//! admitted again. Accepted samples are lost only by the revocation, which says how many.
#![allow(clippy::unwrap_used)]

#[path = "support/program.rs"]
mod program;
#[path = "support/sensor.rs"]
mod sensor;
#[path = "support/separate.rs"]
mod separate;

use std::path::Path;

use program::{PATIENCE, eventually, http, rows, run};
use sensor::Sensors;
use separate::Separate;

const SIGNED: [&str; 4] = ["--by", "Eve Operator", "--reason", "for the test"];

/// Sum of a metric's samples whose labels contain `label`.
fn metric(separate: &Separate, noun: &str, name: &str, label: &str) -> f64 {
    let Ok((_, text)) = http(separate.ports.admin(noun), "GET", "/metrics", "", "") else {
        return 0.0;
    };
    text.lines()
        .filter(|line| line.starts_with(name) && line.contains(label))
        .filter_map(|line| line.rsplit(' ').next()?.parse::<f64>().ok())
        .sum()
}

fn braid(args: &[&str], data: &Path) -> String {
    let data = ["--data", data.to_str().unwrap()];
    let (code, out, error) = run(&[args, &data].concat());
    assert_eq!(code, 0, "braid {}: {error}", args.join(" "));
    out.trim().to_owned()
}

#[test]
fn a_gateway_enrols_renews_is_revoked_and_comes_back() {
    let dir = tempfile::tempdir().unwrap();
    let devices = ["sensor-1".to_owned()];
    let mut separate = Separate::prepare(dir.path(), &devices, &[]);
    let data = separate.data.clone();
    let authority = separate.authority_folder();
    let authority = authority.to_str().unwrap();
    let enrol = || {
        let place = ["--authority", authority];
        braid(
            &[&["gateways", "enrol", "gw-1"], &SIGNED[..], &place].concat(),
            &data,
        )
    };
    start_core(&mut separate, authority);

    let own = dir.path().join("own");
    std::fs::create_dir(&own).unwrap();
    let file = |flag: &str, name: &str| format!("--{flag}={}", own.join(name).display());
    let url = format!("--enrol-url=https://{}", separate.page());
    let flags = |token: &str, ca: &str| {
        [
            file("cert", "own.pem"),
            file("key", "own.key"),
            file("ca", ca),
            format!("--enrol={token}"),
            url.clone(),
        ]
    };

    // The token contains another authority's fingerprint: the gateway trusts no certificate and
    // does not send the secret.
    let token = enrol();
    let (secret, _) = token.rsplit_once('.').unwrap();
    start(
        &mut separate,
        &flags(&format!("{secret}.{}", "0".repeat(64)), "none.pem"),
    );
    let (code, said) = separate.failure("gateway");
    assert!(
        code != Some(0) && said.contains("another authority"),
        "{said}"
    );

    start(&mut separate, &flags(&token, "ca.pem"));
    let sensors = Sensors::start(separate.sensors(), &devices, |number| 60 + number % 40);
    let stored = || rows(&data, "sensor-%").0;
    eventually("rows by the first certificate", || stored() > 0);
    let key = own.join("own.key");
    let mode = std::os::unix::fs::PermissionsExt::mode(&key.metadata().unwrap().permissions());
    assert_eq!(mode & 0o077, 0, "the key is the gateway's alone");

    let mut again = flags(&token, "ca.pem");
    again[0] = file("cert", "second.pem");
    again[1] = file("key", "second.key");
    works_once(&mut separate, &again);
    assert!(!own.join("second.pem").exists());

    let destroyed = is_revoked(&separate);

    // After a new token, samples that its sensor has kept meanwhile arrive.
    separate.kill("gateway");
    let accepted_before = stored();
    std::fs::remove_file(own.join("own.pem")).unwrap();
    let token = enrol();
    let mut renewing = flags(&token, "ca.pem").to_vec();
    // Longer than any certificate's validity: renewed at every look.
    renewing.push("--renew-before-days=3650".to_owned());
    start(&mut separate, &renewing);
    eventually("rows by the second certificate", || {
        stored() > accepted_before
    });
    eventually("it is renewed", || {
        metric(&separate, "gateway", "braid_gateway_renewals_total", "ok") >= 1.0
    });
    // The new session uses the renewed certificate, which the revocation must not affect.
    separate.kill("proxy");
    separate.start("proxy");
    let then = stored();
    eventually("rows by the renewed certificate", || stored() > then + 100);
    let accepted = sensors.stop();
    let kept = accepted - destroyed;
    eventually(&format!("{kept} of {accepted} accepted samples"), || {
        stored() >= kept
    });
    let (all, distinct) = rows(&data, "sensor-%");
    assert!(all <= accepted && all == distinct, "{all}: once each");

    is_listed_and_audited(&data);
}

/// Revokes the gateway. Returns the number of entries that it destroys.
fn is_revoked(separate: &Separate) -> u64 {
    let data = &separate.data;
    // Open sessions are closed, new ones refused.
    braid(
        &[&["gateways", "revoke", "gw-1"], &SIGNED[..]].concat(),
        data,
    );
    let refused = "braid_proxy_sessions_refused_total";
    eventually("the gateway is turned away, and again", || {
        metric(separate, "proxy", refused, "revoked") >= 3.0
    });

    // It hears so, and destroys its key with what it had not sent.
    let key_of_journal = data.join("gw-1").join("journal.key");
    eventually("the gateway's key is destroyed", || {
        let admin = separate.ports.admin("gateway");
        let ready = http(admin, "GET", "/readyz", "", "").unwrap_or_default();
        ready.1.contains("has revoked this gateway") && !key_of_journal.exists()
    });
    let destroyed = "braid_gateway_destroyed_entries_total";
    metric(separate, "gateway", destroyed, "") as u64
}

fn start_core(separate: &mut Separate, authority: &str) {
    for noun in ["path-telemetry", "ingest", "alerting", "proxy"] {
        separate.start(noun);
    }
    separate.start_with(
        "dashboard",
        &["--tls=true", &format!("--authority={authority}")],
    );
}

fn start(separate: &mut Separate, flags: &[String]) {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    separate.start_with("gateway", &flags);
}

/// A second gateway with a used token gets no certificate.
fn works_once(separate: &mut Separate, flags: &[String]) {
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let mut second = separate.another_with("gateway", &flags);
    assert!(!second.wait(PATIENCE).success());
    assert!(second.log().contains("used already"), "{}", second.log());
}

fn is_listed_and_audited(data: &Path) {
    let list = braid(&["gateways", "list"], data);
    assert!(
        list.contains("revoked by Eve Operator") && list.contains("let in again"),
        "{list}"
    );
    let log = braid(&["audit", "--by", "Eve Operator"], data);
    for action in [
        "enrol gateway",
        "certificate by token",
        "revoke gateway",
        "certificate by renewal",
        "read audit",
    ] {
        assert!(log.contains(action), "{action} is not in\n{log}");
    }
}
