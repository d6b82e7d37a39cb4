//! Acts as a browser: signs in, keeps its cookie, sends requests.

use std::net::SocketAddr;
use std::time::Duration;

use bytes::Bytes;
use contracts::identity::administration_service_client::AdministrationServiceClient;
use contracts::patients::patients_service_client::PatientsServiceClient;
use contracts::query::WatchResponse;
use contracts::query::query_service_client::QueryServiceClient;
use contracts::query::watch_response::Update;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::TokioIo;
use tonic::service::interceptor::InterceptedService;
use tonic::transport::Channel;

use crate::ward::{PASSWORD, Ward};

pub const ANYWHERE: &str = "127.0.0.1:0";
/// Only a failing test reaches this limit.
const DEADLINE: Duration = Duration::from_secs(60);

pub async fn within<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::time::timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within {DEADLINE:?}"))
}

pub async fn post(
    address: SocketAddr,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> http::Response<Bytes> {
    ask(address, http::Method::POST, path, body, headers).await
}

pub async fn ask(
    address: SocketAddr,
    method: http::Method,
    path: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> http::Response<Bytes> {
    let stream = tokio::net::TcpStream::connect(address).await.unwrap();
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    let mut request = http::Request::builder()
        .method(method)
        .uri(path)
        .header("host", "braid.test")
        .header("content-type", "application/json");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let request = request
        .body(Full::new(Bytes::from(body.to_owned())))
        .unwrap();
    let (parts, body) = within("an answer", sender.send_request(request))
        .await
        .unwrap()
        .into_parts();
    http::Response::from_parts(parts, body.collect().await.unwrap().to_bytes())
}

pub async fn sign_in(address: SocketAddr, name: &str, password: &str) -> http::Response<Bytes> {
    let body = format!(r#"{{"name":"{name}","password":"{password}"}}"#);
    post(address, "/api/sign-in", &body, &[]).await
}

pub fn cookie(response: &http::Response<Bytes>) -> String {
    let cookie = response.headers()["set-cookie"].to_str().unwrap();
    cookie.split(';').next().unwrap().to_owned()
}

pub async fn cookie_of(ward: &Ward, name: &str) -> String {
    let response = sign_in(ward.address, name, PASSWORD).await;
    assert_eq!(response.status(), 200);
    cookie(&response)
}

pub type Administration = AdministrationServiceClient<InterceptedService<Channel, Cookie>>;
pub type Patients = PatientsServiceClient<InterceptedService<Channel, Cookie>>;
pub type Client = QueryServiceClient<InterceptedService<Channel, Cookie>>;

#[derive(Clone)]
pub struct Cookie(String);

impl tonic::service::Interceptor for Cookie {
    fn call(
        &mut self,
        mut request: tonic::Request<()>,
    ) -> Result<tonic::Request<()>, tonic::Status> {
        request
            .metadata_mut()
            .insert("cookie", self.0.parse().unwrap());
        Ok(request)
    }
}

pub fn administration(ward: &Ward, cookie: &str) -> Administration {
    let channel = service_kit::grpc::channel(&format!("http://{}", ward.address), None).unwrap();
    AdministrationServiceClient::with_interceptor(channel, Cookie(cookie.to_owned()))
}

pub fn patients(ward: &Ward, cookie: &str) -> Patients {
    let channel = service_kit::grpc::channel(&format!("http://{}", ward.address), None).unwrap();
    PatientsServiceClient::with_interceptor(channel, Cookie(cookie.to_owned()))
}

pub fn client(ward: &Ward, cookie: &str) -> Client {
    let channel = service_kit::grpc::channel(&format!("http://{}", ward.address), None).unwrap();
    QueryServiceClient::with_interceptor(channel, Cookie(cookie.to_owned()))
}

pub async fn until<T>(
    what: &str,
    stream: &mut tonic::Streaming<WatchResponse>,
    mut found: impl FnMut(Update) -> Option<T>,
) -> T {
    within(what, async {
        loop {
            let message = stream.message().await.unwrap().expect("the stream goes on");
            if let Some(found) = message.update.and_then(&mut found) {
                return found;
            }
        }
    })
    .await
}
