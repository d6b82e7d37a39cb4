//! TLS and credentials against a real broker: what is right works, and what is wrong is said
//! without being tried for ever.

#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use bus::{
    Bus, KafkaBus, KafkaOptions, Topic,
    conformance::numbered,
    kafka::{OpenError, Password, Sasl, SaslMechanism, Tls},
};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use testkit::kafka::Cluster;

fn authority() -> CertifiedIssuer<'static, KeyPair> {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    // OpenSSL takes a certificate for self-signed when it bears its issuer's name.
    params
        .distinguished_name
        .push(DnType::CommonName, "the authority");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap()
}

/// Lines of a broker that takes TLS with a password, and its authority's file.
fn files(dir: &Path) -> (PathBuf, PathBuf) {
    let authority = authority();
    let key = KeyPair::generate().unwrap();
    let params = CertificateParams::new(vec!["127.0.0.1".to_owned()]).unwrap();
    let certificate = params.signed_by(&key, &authority).unwrap();
    let (ca, broker) = (dir.join("ca.pem"), dir.join("broker.pem"));
    std::fs::write(&ca, authority.pem()).unwrap();
    std::fs::write(&broker, key.serialize_pem() + &certificate.pem()).unwrap();
    (ca, broker)
}

fn lines(port: u16, ca: &Path, broker: &Path) -> String {
    format!(
        "listeners=SASL_SSL://127.0.0.1:{port},CONTROLLER://127.0.0.1:{}
advertised.listeners=SASL_SSL://127.0.0.1:{port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_SSL
sasl.enabled.mechanisms=PLAIN
sasl.mechanism.inter.broker.protocol=PLAIN
listener.name.sasl_ssl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required username=\"braid\" password=\"right\" user_braid=\"right\";
ssl.keystore.type=PEM
ssl.keystore.location={}
ssl.truststore.type=PEM
ssl.truststore.location={}
ssl.enabled.protocols=TLSv1.3",
        port + 1000,
        broker.display(),
        ca.display(),
    )
}

fn options(cluster: &Cluster, ca: &Path, password: &str) -> KafkaOptions {
    KafkaOptions {
        replication: 1,
        in_sync_min: 1,
        tls: Some(Tls {
            ca: Some(ca.to_owned()),
            ..Tls::default()
        }),
        sasl: Some(Sasl {
            mechanism: SaslMechanism::Plain,
            user: "braid".to_owned(),
            password: Password(password.to_owned()),
        }),
        ..KafkaOptions::new(cluster.brokers())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_and_password_are_checked_and_a_wrong_one_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let (ca, broker) = files(dir.path());
    let Some(cluster) = Cluster::start_with(1, |port| lines(port, &ca, &broker)) else {
        return;
    };
    let bus = KafkaBus::open(options(&cluster, &ca, "right"), |reason| {
        println!("{reason}")
    })
    .await;
    let bus = bus.unwrap_or_else(|e| panic!("{e}"));
    bus.publish(Topic::Alerts, vec![numbered("a", 1)])
        .await
        .unwrap();

    let wrong = KafkaBus::open(options(&cluster, &ca, "hunter2"), |reason| {
        println!("{reason}")
    });
    let Err(error) = wrong.await else {
        panic!("a wrong password was accepted")
    };
    assert!(
        matches!(&error, OpenError::Credentials { user, .. } if user == "braid"),
        "{error}"
    );
    assert!(!error.to_string().contains("hunter2"), "{error}");

    let other = dir.path().join("other.pem");
    std::fs::write(&other, authority().pem()).unwrap();
    let wrong = KafkaBus::open(options(&cluster, &other, "right"), |reason| {
        println!("{reason}")
    });
    let Err(error) = wrong.await else {
        panic!("an unknown authority was accepted")
    };
    assert!(matches!(error, OpenError::Tls { .. }), "{error}");
}
