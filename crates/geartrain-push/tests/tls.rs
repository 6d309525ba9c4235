//! Targets with TLS.

use std::path::Path;
use std::sync::Arc;

use geartrain_push::{Push, PushOptions};
use geartrain_testkit::peers::Scratch;
use geartrain_testkit::tls::Authority;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

use crate::attempts::push;
use crate::server::{Server, Step, response};

async fn server((certificate, key): (impl AsRef<Path>, impl AsRef<Path>)) -> Server {
    let chain = CertificateDer::pem_file_iter(certificate).unwrap().collect::<Result<_, _>>().unwrap();
    let key = PrivateKeyDer::from_pem_file(key).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(chain, key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    Server::start_with(Some(acceptor), |_| vec![Step::Send(response("200 OK", "", "private"))]).await
}

#[tokio::test]
async fn a_target_with_a_trusted_certificate_gets_the_job() {
    let (scratch, authority) = (Scratch::new("push-tls"), Authority::new());
    let server = server(authority.sign(&scratch, "server", "127.0.0.1")).await;
    let mut options = PushOptions::default();
    options.authorities = Some(authority.write(&scratch, "ca.pem"));
    assert_eq!(push(&server.url("/"), options).await, "complete private");
    assert_eq!(server.requests().len(), 1);
}

#[tokio::test]
async fn a_target_without_one_gets_nothing() {
    let (scratch, authority) = (Scratch::new("push-tls"), Authority::new());
    let unknown = server(authority.sign(&scratch, "server", "127.0.0.1")).await;
    let verdict = push(&unknown.url("/"), PushOptions::default()).await;
    assert!(verdict.contains("mail-http-connection") && verdict.contains("UnknownIssuer"), "{verdict}");

    let other_host = server(authority.sign(&scratch, "other", "example.org")).await;
    let mut options = PushOptions::default();
    options.authorities = Some(authority.write(&scratch, "ca.pem"));
    let verdict = push(&other_host.url("/"), options).await;
    assert!(verdict.contains("mail-http-connection") && verdict.contains("not valid for name"), "{verdict}");
    assert!(unknown.requests().is_empty() && other_host.requests().is_empty());
}

#[test]
fn a_bad_file_of_authorities_is_refused_at_the_start() {
    let scratch = Scratch::new("push-tls");
    let file = scratch.path().join("ca.pem");
    let mut options = PushOptions::default();
    options.authorities = Some(file.clone());
    let refused =
        |options: &PushOptions| Push::new("https://127.0.0.1/", options.clone()).unwrap_err().to_string();
    let beginning = format!("cannot use the certificate authorities in {}: ", file.display());
    assert!(refused(&options).starts_with(&beginning));
    std::fs::write(&file, "no certificate").unwrap();
    assert_eq!(refused(&options), format!("{beginning}it has no certificate in it"));
}
