//! Gearman with TLS and client certificates.
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use geartrain_server::{GearmanSettings, Server, Settings, StartError, TlsFiles};
use geartrain_testkit::peers::Scratch;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A certificate authority.
struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Authority {
        let mut about = CertificateParams::new(Vec::new()).unwrap();
        about.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        Authority { issuer: CertifiedIssuer::self_signed(about, KeyPair::generate().unwrap()).unwrap() }
    }

    fn sign(&self, name: &str) -> (rcgen::Certificate, KeyPair) {
        let key = KeyPair::generate().unwrap();
        let about = CertificateParams::new(vec![name.to_owned()]).unwrap();
        (about.signed_by(&key, &self.issuer).unwrap(), key)
    }

    /// A client that trusts this authority, with a certificate signed by another one, if given.
    fn client(&self, signed_by: Option<&Authority>) -> TlsConnector {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone()).unwrap();
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let config = config.with_root_certificates(roots);
        let config = match signed_by {
            None => config.with_no_client_auth(),
            Some(authority) => {
                let (certificate, key) = authority.sign("worker");
                let chain: Vec<CertificateDer<'static>> = vec![certificate.der().clone()];
                let key = PrivateKeyDer::try_from(key.serialize_der()).unwrap();
                config.with_client_auth_cert(chain, key).unwrap()
            }
        };
        TlsConnector::from(Arc::new(config))
    }
}

fn settings(tls: Option<TlsFiles>, address: SocketAddr) -> Settings {
    Settings {
        store: "memory:".to_owned(),
        resp: (Ipv4Addr::LOCALHOST, 0).into(),
        gearman: Some(GearmanSettings { tls, ..GearmanSettings::new(address) }),
        result_log: None,
        result_log_keep: None,
        password: None,
        insecure: false,
        allow_flush: false,
        demo: false,
    }
}

fn write(scratch: &Scratch, name: &str, text: &str) -> PathBuf {
    let file = scratch.path().join(name);
    std::fs::write(&file, text).unwrap();
    file
}

/// The reply to `version`, if there is one.
async fn version(connector: &TlsConnector, server: &Server) -> Option<String> {
    let stream = TcpStream::connect(server.gearman().unwrap()).await.unwrap();
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
    let (certificate, key) = authority.sign("localhost");
    let files = TlsFiles {
        certificate: write(&scratch, "server.pem", &certificate.pem()),
        key: write(&scratch, "server.key", &key.serialize_pem()),
        authorities: Some(write(&scratch, "ca.pem", &authority.issuer.pem())),
    };
    let local = (Ipv4Addr::LOCALHOST, 0).into();
    let server = Server::start(&settings(Some(files.clone()), local)).await.unwrap();
    let answer = version(&authority.client(Some(&authority)), &server).await.expect("it is let in");
    assert!(answer.starts_with("OK 1.1.20-geartrain-"), "{answer}");
    assert_eq!(version(&authority.client(Some(&stranger)), &server).await, None);
    assert_eq!(version(&authority.client(None), &server).await, None);
    // Plain text is refused.
    let mut plain = TcpStream::connect(server.gearman().unwrap()).await.unwrap();
    plain.write_all(b"version\n").await.unwrap();
    let mut answer = Vec::new();
    let _ = plain.read_to_end(&mut answer).await;
    assert_eq!(answer, b"");
    server.stop().await;

    // Without authorities every TLS client is accepted.
    let open = TlsFiles { authorities: None, ..files.clone() };
    let server = Server::start(&settings(Some(open), local)).await.unwrap();
    assert!(version(&authority.client(None), &server).await.is_some());
    server.stop().await;
}

#[tokio::test]
async fn a_public_address_needs_client_certificates_and_bad_files_are_named() {
    let everywhere = (Ipv4Addr::UNSPECIFIED, 0).into();
    let Err(StartError::Open { .. }) = Server::start(&settings(None, everywhere)).await else {
        panic!("anybody could come in");
    };
    let scratch = Scratch::new("tls");
    let bad = write(&scratch, "bad.pem", "not a certificate");
    let files = TlsFiles { certificate: bad.clone(), key: bad.clone(), authorities: None };
    let local = (Ipv4Addr::LOCALHOST, 0).into();
    let error = Server::start(&settings(Some(files), local)).await.err().expect("it does not start");
    assert!(error.to_string().contains("bad.pem"), "{error}");
}
