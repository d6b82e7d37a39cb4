//! Two services over TLS 1.3: which certificates are trusted, and renewal without a restart.
#![allow(clippy::unwrap_used)]

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use axum::extract::Extension;
use axum::{Router, routing::get};
use rcgen::{CertificateParams, ExtendedKeyUsagePurpose, Issuer, KeyPair, SanType};
use service_kit::Context;
use service_kit::grpc::{self, Peer};
use service_kit::tls::authority::LocalAuthority;
use service_kit::tls::{Identity, IdentityFiles, PeerId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Returns the peer as the server sees it.
async fn whoami(Extension(peer): Extension<Peer>) -> String {
    peer.id
        .map_or_else(|| "nobody".to_owned(), |id| id.to_string())
}

async fn server(
    identity: &Identity,
    client_auth: bool,
) -> (SocketAddr, Context, tokio::task::JoinHandle<()>) {
    let context = Context::new("ingest");
    let listener = grpc::bind("127.0.0.1:0".parse().unwrap(), "listen")
        .await
        .unwrap();
    let tls = identity.server_config(client_auth, &[b"http/1.1"]);
    let task = tokio::spawn({
        let context = context.clone();
        async move {
            let router = Router::new().route("/", get(whoami));
            grpc::serve(listener, "http", router, Some(tls), &context)
                .await
                .unwrap();
        }
    });
    let address = context.address("http").await.unwrap();
    (address, context, task)
}

/// One request over TLS; the error is the handshake's or the connection's.
async fn ask(address: SocketAddr, client: &Identity, name: &str) -> Result<String, String> {
    let connector = tokio_rustls::TlsConnector::from(client.client_config(&[b"http/1.1"]));
    let name = rustls_pki_types::ServerName::try_from(name.to_owned()).unwrap();
    let exchange = async {
        let stream = TcpStream::connect(address).await?;
        let mut stream = connector.connect(name, stream).await?;
        stream
            .write_all(b"GET / HTTP/1.1\r\nhost: ingest\r\nconnection: close\r\n\r\n")
            .await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        Ok::<_, std::io::Error>(answer)
    };
    let answer = tokio::time::timeout(Duration::from_secs(10), exchange)
        .await
        .unwrap()
        .map_err(|error| error.to_string())?;
    answer
        .split("\r\n\r\n")
        .nth(1)
        .map(str::to_owned)
        .ok_or_else(|| answer.clone())
}

fn load(files: &IdentityFiles) -> Identity {
    Identity::load_with_interval(files, Duration::ZERO).unwrap()
}

fn gateway(dir: &Path) -> IdentityFiles {
    LocalAuthority::open_or_create(dir)
        .unwrap()
        .issue(&PeerId::gateway("home", "gw-1"), &[])
        .unwrap()
}

fn service(dir: &Path) -> IdentityFiles {
    LocalAuthority::open_or_create(dir)
        .unwrap()
        .issue(&PeerId::service("ingest"), &["10.0.0.7".to_owned()])
        .unwrap()
}

#[tokio::test]
async fn the_server_learns_the_verified_identity() {
    let dir = tempfile::tempdir().unwrap();
    let (server_files, client_files) = (service(dir.path()), gateway(dir.path()));
    let (address, context, task) = server(&load(&server_files), true).await;
    let client = load(&client_files);
    assert_eq!(client.peer_id().unwrap(), PeerId::gateway("home", "gw-1"));
    for name in ["ingest", "localhost", "127.0.0.1", "10.0.0.7"] {
        let answer = ask(address, &client, name).await;
        assert_eq!(answer.unwrap(), "spiffe://braid/tenant/home/gateway/gw-1");
    }
    assert!(
        ask(address, &client, "elsewhere").await.is_err(),
        "a name the server does not have"
    );
    context.shutdown().request();
    task.await.unwrap();
}

#[tokio::test]
async fn an_unknown_authority_is_refused_in_both_directions() {
    let (ours, theirs) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (server_files, _) = (service(ours.path()), ());
    let (address, context, task) = server(&load(&server_files), true).await;

    // A client of the other authority trusts ours: our server must refuse its certificate.
    let mut files = gateway(theirs.path());
    files.ca = server_files.ca.clone();
    assert!(ask(address, &load(&files), "ingest").await.is_err());
    // A client that trusts only the other authority must refuse our server.
    assert!(
        ask(address, &load(&gateway(theirs.path())), "ingest")
            .await
            .is_err()
    );
    context.shutdown().request();
    task.await.unwrap();

    // A gateway's certificate must not count as a service's.
    let gateway_files = gateway(ours.path());
    let (address, context, task) = server(&load(&gateway_files), false).await;
    assert!(
        ask(address, &load(&server_files), "localhost")
            .await
            .is_err()
    );
    context.shutdown().request();
    task.await.unwrap();
}

#[tokio::test]
async fn renewed_files_take_effect_without_a_restart() {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server_files = service(old.path());
    let identity = load(&server_files);
    let (address, context, task) = server(&identity, true).await;
    let newcomer = load(&gateway(new.path()));
    assert!(ask(address, &newcomer, "ingest").await.is_err());

    // The service moves to another authority: certificate, key and roots are replaced while it
    // runs.
    let renewed = service(new.path());
    std::fs::copy(&renewed.ca, &server_files.ca).unwrap();
    std::fs::copy(&renewed.key, &server_files.key).unwrap();
    // Half a renewal: the key does not fit the certificate, and the old pair stays in force.
    let veteran = gateway(new.path());
    assert!(ask(address, &load(&veteran), "ingest").await.is_err());
    std::fs::copy(&renewed.cert, &server_files.cert).unwrap();

    let answer = ask(address, &newcomer, "ingest").await;
    assert_eq!(answer.unwrap(), "spiffe://braid/tenant/home/gateway/gw-1");
    context.shutdown().request();
    task.await.unwrap();
}

/// Connects twice with one client, whose store keeps its tickets; in between, the server's
/// authority is replaced.
async fn returns_after_the_authority_changed(
    tune: impl FnOnce(&mut rustls::ServerConfig),
) -> Result<rustls::HandshakeKind, String> {
    let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let server_files = service(old.path());
    let identity = load(&server_files);
    let mut tls = (*identity.server_config(true, &[b"x"])).clone();
    tune(&mut tls);
    let acceptor = tokio_rustls::TlsAcceptor::from(std::sync::Arc::new(tls));
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            if let Ok(mut stream) = acceptor.accept(stream).await {
                // A refused client gets no data.
                let _ = stream.write_all(b"in").await;
                let _ = stream.shutdown().await;
            }
        }
    });
    let client = load(&gateway(old.path())).client_config(&[b"x"]);
    let connector = tokio_rustls::TlsConnector::from(client);
    let mut last = Err("never asked".to_owned());
    for round in 0..2 {
        let name = rustls_pki_types::ServerName::try_from("localhost").unwrap();
        let exchange = async {
            let stream = TcpStream::connect(address).await?;
            let mut stream = connector.connect(name, stream).await?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await?;
            let kind = stream.get_ref().1.handshake_kind();
            kind.filter(|_| answer == "in")
                .ok_or_else(|| std::io::Error::other("not let in"))
        };
        last = exchange.await.map_err(|error| error.to_string());
        if round == 0 {
            assert_eq!(last, Ok(rustls::HandshakeKind::Full));
            // The old authority is no longer trusted; the server's own certificate stays.
            let other = LocalAuthority::open_or_create(new.path()).unwrap();
            let untrusted = other.issue(&PeerId::service("other"), &[]).unwrap();
            std::fs::copy(&untrusted.ca, &server_files.ca).unwrap();
        }
    }
    last
}

#[tokio::test]
async fn no_ticket_admits_a_certificate_of_a_removed_authority() {
    let ours = returns_after_the_authority_changed(|_| ()).await;
    assert!(ours.is_err(), "{ours:?}");
    // The attack that is prevented: with tickets the certificate is not verified again.
    let with_tickets = returns_after_the_authority_changed(|tls| {
        tls.send_tls13_tickets = 2;
        tls.session_storage = rustls::server::ServerSessionMemoryCache::new(8);
    });
    assert_eq!(with_tickets.await, Ok(rustls::HandshakeKind::Resumed));
}

/// A certificate from a stolen key of an authority, without the extra names of a regular one.
fn forge(authority: &LocalAuthority, id: &PeerId, hosts: &[&str], files: &IdentityFiles) {
    let (certificate, key) = authority.own_files();
    let read = |path| std::fs::read_to_string(path).unwrap();
    let key = KeyPair::from_pem(&read(key)).unwrap();
    let thief = Issuer::from_ca_cert_pem(&read(certificate), key).unwrap();
    let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
    let mut params = CertificateParams::new(hosts).unwrap();
    let uri = id.to_string().as_str().try_into().unwrap();
    params.subject_alt_names.push(SanType::URI(uri));
    params.extended_key_usages = vec![
        ExtendedKeyUsagePurpose::ClientAuth,
        ExtendedKeyUsagePurpose::ServerAuth,
    ];
    let key = KeyPair::generate().unwrap();
    let certificate = params.signed_by(&key, &thief).unwrap();
    std::fs::write(&files.key, key.serialize_pem()).unwrap();
    std::fs::write(&files.cert, certificate.pem()).unwrap();
}

#[tokio::test]
async fn the_authority_for_gateways_is_trusted_for_gateways_alone() {
    let dir = tempfile::tempdir().unwrap();
    let all = LocalAuthority::open_or_create(dir.path()).unwrap();
    let gateways = LocalAuthority::open_or_create_for_gateways(dir.path()).unwrap();
    let meets = service(dir.path());
    let meets = IdentityFiles {
        ca: dir.path().join("both.pem"),
        ..meets
    };
    all.introduce(&gateways, &meets).unwrap();
    let gateway = PeerId::gateway("home", "gw-1");
    let issue = |authority: &LocalAuthority, folder: &str, id: &PeerId| {
        let files = authority
            .issue_in(&dir.path().join(folder), id, &[])
            .unwrap();
        // Every process trusts the authority of the services.
        std::fs::copy(all.ca_file(), &files.ca).unwrap();
        load(&files)
    };
    let own = issue(&gateways, "own", &gateway);
    assert!(
        gateways.issue(&PeerId::service("ingest"), &[]).is_err(),
        "not even by mistake"
    );
    let forged = |name: &str, id: &PeerId, hosts: &[&str]| {
        let files = IdentityFiles::in_dir(dir.path(), name);
        forge(&gateways, id, hosts, &files);
        load(&files)
    };
    let alerting = PeerId::service("alerting");
    let as_gateway = forged("as-gateway", &gateway, &[]);
    let as_service = forged("as-service", &alerting, &[]);
    let names = ["alerting", "localhost", "127.0.0.1"];
    let as_server = forged("as-server", &alerting, &names);
    let services = issue(&all, "service", &PeerId::service("alerting"));

    // A server that gateways connect to.
    let (address, context, task) = server(&load(&meets), true).await;
    for client in [&own, &as_gateway] {
        let answer = ask(address, client, "ingest").await;
        assert_eq!(answer.unwrap(), gateway.to_string());
    }
    let answer = ask(address, &services, "ingest").await;
    assert_eq!(answer.unwrap(), "spiffe://braid/service/alerting");
    for client in [&as_service, &as_server] {
        assert!(ask(address, client, "ingest").await.is_err());
    }
    context.shutdown().request();
    task.await.unwrap();

    // A server between services, which do not trust the authority for gateways.
    let (address, context, task) = server(&services, true).await;
    for client in [&own, &as_gateway, &as_service, &as_server] {
        assert!(ask(address, client, "alerting").await.is_err());
    }
    context.shutdown().request();
    task.await.unwrap();

    // As a server it is refused by clients that trust both authorities: for its identity, and for
    // names that its authority may not give.
    let (address, context, task) = server(&as_server, false).await;
    assert!(ask(address, &load(&meets), "alerting").await.is_err());
    let mut roots = rustls::RootCertStore::empty();
    let (certificate, _) = gateways.own_files();
    let certificate = rustls_pki_types::pem::PemObject::from_pem_file(certificate).unwrap();
    roots.add(certificate).unwrap();
    let provider = std::sync::Arc::new(rustls::crypto::ring::default_provider());
    let config = rustls::ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = tokio_rustls::TlsConnector::from(std::sync::Arc::new(config));
    for name in names {
        let name = rustls_pki_types::ServerName::try_from(name).unwrap();
        let stream = TcpStream::connect(address).await.unwrap();
        let refused = connector
            .connect(name, stream)
            .await
            .unwrap_err()
            .to_string();
        assert!(refused.contains("NameConstraintViolation"), "{refused}");
    }
    context.shutdown().request();
    task.await.unwrap();
}

#[test]
fn a_certificate_that_peers_refuse_is_known_at_the_start() {
    let (dir, other_dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
    let other = LocalAuthority::open_or_create(other_dir.path()).unwrap();
    let believing = |files: IdentityFiles, ca: &IdentityFiles| {
        let ca = ca.ca.clone();
        Identity::load(&IdentityFiles { ca, ..files }).unwrap()
    };
    let own = authority.issue(&PeerId::service("ingest"), &[]).unwrap();
    let identity = believing(own.clone(), &own);
    let now = std::time::SystemTime::now();
    let refused = |identity: &Identity, at| identity.refused_by_peers(at).unwrap().is_some();
    assert!(!refused(&identity, now));
    assert!(refused(&identity, std::time::UNIX_EPOCH), "not yet valid");
    let end = identity.valid_until().unwrap();
    assert!(refused(&identity, end + Duration::from_secs(1)), "expired");
    let service = other.issue(&PeerId::service("proxy"), &[]).unwrap();
    assert!(refused(&believing(service, &own), now), "somebody else's");
}

#[test]
fn no_gateway_has_the_name_by_which_kafka_knows_a_service() {
    let dir = tempfile::tempdir().unwrap();
    let authority = LocalAuthority::open_or_create(dir.path()).unwrap();
    let name = |id: &PeerId| {
        let pem = std::fs::read(authority.issue(id, &[]).unwrap().cert).unwrap();
        let (_, pem) = x509_parser::pem::parse_x509_pem(&pem).unwrap();
        pem.parse_x509().unwrap().subject().to_string()
    };
    assert_eq!(name(&PeerId::service("ingest")), "CN=ingest");
    let namesake = PeerId::gateway("default", "ingest");
    assert_eq!(name(&namesake), "CN=gateway ingest");
    // The authority also refuses to sign a request of its own gateway for such a name.
    let request = service_kit::tls::renewal::Request::new().unwrap();
    let signed = authority.sign(&request.request_pem, &namesake).unwrap();
    let (_, pem) = x509_parser::pem::parse_x509_pem(signed.pem.as_bytes()).unwrap();
    let subject = pem.parse_x509().unwrap().subject().to_string();
    assert_eq!(subject, "CN=gateway ingest");
}
