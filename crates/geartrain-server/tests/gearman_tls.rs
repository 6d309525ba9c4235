//! Gearman with TLS and client certificates.
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use geartrain_server::{GearmanSettings, Server, Settings, StartError, TlsFiles};
use geartrain_testkit::peers::Scratch;
use geartrain_testkit::tls::Authority;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

pub(crate) const LOCAL: Ipv4Addr = Ipv4Addr::LOCALHOST;

/// A client that trusts an authority, with a certificate and key of its own, if given.
pub(crate) fn client(authority: &Path, identity: Option<(PathBuf, PathBuf)>) -> TlsConnector {
    let certificates = |file: &Path| -> Vec<CertificateDer<'static>> {
        CertificateDer::pem_file_iter(file).unwrap().map(Result::unwrap).collect()
    };
    let mut roots = RootCertStore::empty();
    certificates(authority).into_iter().for_each(|certificate| roots.add(certificate).unwrap());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
    let config = config.with_root_certificates(roots);
    let config = match identity {
        None => config.with_no_client_auth(),
        Some((chain, key)) => {
            let key = PrivateKeyDer::from_pem_file(key).unwrap();
            config.with_client_auth_cert(certificates(&chain), key).unwrap()
        }
    };
    TlsConnector::from(Arc::new(config))
}

fn settings(tls: Option<TlsFiles>, address: SocketAddr) -> Settings {
    let gearman = GearmanSettings { tls, ..GearmanSettings::new(address) };
    Settings { gearman: Some(gearman), ..Settings::new("memory:", (LOCAL, 0).into()) }
}

/// The reply to `version`, if there is one.
async fn version(connector: &TlsConnector, server: &Server) -> Option<String> {
    let stream = TcpStream::connect(server.gearman().unwrap().ip().unwrap()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let mut stream = connector.connect(name, stream).await.ok()?;
    stream.write_all(b"version\n").await.ok()?;
    let mut answer = [0; 64];
    match stream.read(&mut answer).await {
        Ok(bytes @ 1..) => Some(String::from_utf8_lossy(&answer[..bytes]).into_owned()),
        _ => None,
    }
}

#[tokio::test]
async fn a_client_certificate_of_the_authority_is_required() {
    let (authority, stranger, scratch) = (Authority::new(), Authority::new(), Scratch::new("tls"));
    let (certificate, key) = authority.sign(&scratch, "server", "localhost");
    let ca = authority.write(&scratch, "ca.pem");
    let files = TlsFiles { certificate, key, authorities: Some(ca.clone()) };
    let local = (LOCAL, 0).into();
    let server = Server::start(&settings(Some(files.clone()), local)).await.unwrap();
    let signed = client(&ca, Some(authority.sign(&scratch, "worker", "worker")));
    let answer = version(&signed, &server).await.expect("it is let in");
    assert!(answer.starts_with("OK 1.1.20-geartrain-"), "{answer}");
    let forged = client(&ca, Some(stranger.sign(&scratch, "stranger", "worker")));
    assert_eq!(version(&forged, &server).await, None);
    assert_eq!(version(&client(&ca, None), &server).await, None);
    // Plain text is refused.
    let mut plain = TcpStream::connect(server.gearman().unwrap().ip().unwrap()).await.unwrap();
    plain.write_all(b"version\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert_eq!(answer, b"");
    server.stop().await;

    // Without authorities every TLS client is accepted.
    let open = TlsFiles { authorities: None, ..files.clone() };
    let server = Server::start(&settings(Some(open), local)).await.unwrap();
    assert!(version(&client(&ca, None), &server).await.is_some());
    server.stop().await;
}

#[tokio::test]
async fn a_public_address_needs_client_certificates_and_bad_files_are_named() {
    let everywhere = (Ipv4Addr::UNSPECIFIED, 0).into();
    let Err(StartError::Open { .. }) = Server::start(&settings(None, everywhere)).await else {
        panic!("anybody could come in");
    };
    let scratch = Scratch::new("tls");
    let bad = scratch.path().join("bad.pem");
    std::fs::write(&bad, "not a certificate").unwrap();
    let files = TlsFiles { certificate: bad.clone(), key: bad.clone(), authorities: None };
    let error = Server::start(&settings(Some(files), (LOCAL, 0).into())).await.err().expect("no start");
    assert!(error.to_string().contains("bad.pem"), "{error}");
}

/// A client that reads late gets all of a large reply: no part of it stays in the buffer of the encryption.
#[tokio::test]
async fn a_large_reply_reaches_a_client_that_reads_late() {
    let (authority, scratch) = (Authority::new(), Scratch::new("tls"));
    let (certificate, key) = authority.sign(&scratch, "server", "localhost");
    let files = TlsFiles { certificate, key, authorities: None };
    let server = Server::start(&settings(Some(files), (LOCAL, 0).into())).await.unwrap();
    let stream = TcpStream::connect(server.gearman().unwrap().ip().unwrap()).await.unwrap();
    let name = ServerName::try_from("localhost").unwrap();
    let connector = client(&authority.write(&scratch, "ca.pem"), None);
    let mut stream = connector.connect(name, stream).await.unwrap();
    let data = vec![b'x'; 8 << 20];
    let head = [&b"\0REQ\0\0\0\x10"[..], &u32::try_from(data.len()).unwrap().to_be_bytes()].concat();
    stream.write_all(&head).await.unwrap();
    stream.write_all(&data).await.unwrap();
    stream.flush().await.unwrap();
    let mut echoed = vec![0; head.len() + data.len()];
    let reading = stream.read_exact(&mut echoed);
    tokio::time::timeout(std::time::Duration::from_secs(60), reading).await.expect("all of it").unwrap();
    assert!(echoed[12..] == data);
    server.stop().await;
}
