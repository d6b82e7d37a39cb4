//! TLS 1.3 to the server by rustls, for tokio-postgres.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use futures::future::BoxFuture;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::{CertificateDer, ServerName, pem::PemObject};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect};
use tokio_rustls::{TlsConnector, client::TlsStream};

/// `roots`: certificates in PEM of the authorities that may vouch for the server; its name is
/// always checked.
pub fn client_config(roots: &[u8]) -> Result<Arc<ClientConfig>, String> {
    let mut store = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(roots) {
        let certificate = certificate.map_err(|e| format!("is no PEM: {e}"))?;
        store
            .add(certificate)
            .map_err(|e| format!("holds no certificate of an authority: {e}"))?;
    }
    if store.is_empty() {
        return Err("holds no certificate".to_owned());
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(|e| e.to_string())?
        .with_root_certificates(store)
        .with_no_client_auth();
    Ok(Arc::new(config))
}

#[derive(Clone)]
pub struct MakeRustls(pub Arc<ClientConfig>);

pub struct Rustls {
    config: Arc<ClientConfig>,
    name: ServerName<'static>,
}

pub struct Stream<S>(TlsStream<S>);

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for MakeRustls {
    type Stream = Stream<S>;
    type TlsConnect = Rustls;
    type Error = rustls_pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Rustls, Self::Error> {
        Ok(Rustls {
            config: Arc::clone(&self.0),
            name: ServerName::try_from(host.to_owned())?,
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Rustls {
    type Stream = Stream<S>;
    type Error = io::Error;
    type Future = BoxFuture<'static, io::Result<Stream<S>>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(async move {
            let connector = TlsConnector::from(self.config);
            Ok(Stream(connector.connect(self.name, stream).await?))
        })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> tokio_postgres::tls::TlsStream for Stream<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}
