//! Tests of credentials read from files, and of the tasks that certificates are for.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::*;
use crate::endpoint_map::TaskName;

const SECRET: &[u8] = b"a secret of more than thirty-two bytes\n";

struct Files(TempDir);

impl Files {
    fn new() -> Self {
        Files(tempfile::tempdir().unwrap())
    }

    fn write(&self, name: &str, mode: u32, bytes: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.path().join(name);
        fs::write(&path, bytes).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    /// Credentials of these files; the mode is that of the key, or of the authorities.
    fn tls(
        &self,
        certificate: &str,
        key: (u32, &str),
        authorities: (u32, &str),
    ) -> Result<Authentication, AuthenticationError> {
        Authentication::tls(&TlsFiles {
            certificate: self.write("certificate.pem", 0o644, certificate),
            key: self.write("key.pem", key.0, key.1),
            authorities: self.write("authorities.pem", authorities.0, authorities.1),
        })
    }
}

fn tomorrow() -> SystemTime {
    SystemTime::now() + Duration::from_secs(86_400)
}

fn task(name: &str) -> TaskName {
    name.parse().unwrap()
}

#[test]
fn a_secret_is_read_from_a_file_of_its_owner_alone() {
    let files = Files::new();
    for mode in [0o600, 0o400] {
        let secret = Authentication::secret(&files.write("secret", mode, SECRET)).unwrap();
        assert_eq!((secret.name(), secret.is_open()), ("shared secret", false));
    }
    for mode in [0o640, 0o604, 0o602, 0o777] {
        let error = Authentication::secret(&files.write("open", mode, SECRET)).unwrap_err();
        let text = error.to_string();
        assert!(text.contains(&format!("its mode is {mode:o}")) && text.contains("chmod 600"), "{text}");
    }
}

#[test]
fn secrets_that_are_short_long_or_missing_are_refused_with_the_remedy() {
    let files = Files::new();
    let short = Authentication::secret(&files.write("short", 0o600, "guess me\n")).unwrap_err().to_string();
    assert!(short.contains("has 8 bytes") && short.contains("sealane keys secret"), "{short}");
    let long = Authentication::secret(&files.write("long", 0o600, [b'x'; SECRET_BYTES_MAX + 1])).unwrap_err();
    assert!(long.to_string().contains("more than 4096 bytes"), "{long}");
    let missing = Authentication::secret(&files.0.path().join("missing")).unwrap_err().to_string();
    assert!(missing.contains("cannot be read") && missing.contains("missing"), "{missing}");
}

#[test]
fn what_says_who_is_believed_may_be_written_by_its_owner_alone_and_is_a_file() {
    let files = Files::new();
    let authority = Authority::new().unwrap();
    let certified = authority.certify(&[task("a:1")], tomorrow()).unwrap();
    let read = |mode| files.tls(&certified.certificate, (0o600, &certified.key), (mode, &authority.certificate()));
    read(0o644).unwrap();
    for mode in [0o664, 0o646] {
        let error = read(mode).unwrap_err().to_string();
        assert!(error.contains("the authorities") && error.contains("is accessible to others"), "{error}");
    }
    // Opening a FIFO would wait for a writer.
    let fifo = files.0.path().join("fifo");
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRUSR).unwrap();
    let error = Authentication::secret(&fifo).unwrap_err().to_string();
    assert!(error.contains("it is not a regular file"), "{error}");
}

#[test]
fn certificates_keys_and_authorities_are_read_and_must_fit() {
    let files = Files::new();
    let authority = Authority::new().unwrap();
    let (one, other) = (
        authority.certify(&[task("a:1")], tomorrow()).unwrap(),
        authority.certify(&[task("b:1")], tomorrow()).unwrap(),
    );
    let read =
        |certificate: &str, key: (u32, &str), authorities: &str| files.tls(certificate, key, (0o644, authorities));
    let believed = authority.certificate();
    assert_eq!(read(&one.certificate, (0o600, &one.key), &believed).unwrap().name(), "TLS 1.3");
    let says = |result: Result<Authentication, AuthenticationError>, words: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    says(read(&one.certificate, (0o600, &other.key), &believed), "does not match the key");
    says(read(&one.certificate, (0o644, &one.key), &believed), "is accessible to others: its mode is 644");
    says(read(&one.certificate, (0o600, "no key"), &believed), "no private key in PEM");
    says(read("", (0o600, &one.key), &believed), "there is no certificate in it");
    says(read(&one.certificate, (0o600, &one.key), ""), "there is no certificate in it");
    let torn = believed.replace("MII", "!!!");
    says(read(&one.certificate, (0o600, &one.key), &torn), "authorities.pem");
}

/// A certificate and its authority, valid until `own` and `authority`.
fn ending(own: SystemTime, authority: SystemTime) -> (String, String, String) {
    use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    let until = |time: SystemTime| epoch + time.duration_since(SystemTime::UNIX_EPOCH).unwrap();
    let mut params = CertificateParams::default();
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.not_after = until(authority);
    let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let (mut params, key) = (CertificateParams::default(), KeyPair::generate().unwrap());
    params.not_after = until(own);
    let certificate = params.signed_by(&key, &authority).unwrap();
    (certificate.pem(), key.serialize_pem(), authority.pem())
}

#[test]
fn the_end_is_that_of_the_certificate_or_sooner_of_its_authority() {
    // Certificates count whole seconds.
    let now = SystemTime::UNIX_EPOCH + Duration::from_secs(SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs());
    let in_days = |days: u64| now + Duration::from_secs(days * 86_400);
    let files = Files::new();
    let read = |(certificate, key, authorities): &(String, String, String)| {
        files.tls(certificate, (0o600, key), (0o644, authorities))
    };
    let ends = |own, authority| read(&ending(own, authority)).unwrap().ends();
    assert_eq!(ends(in_days(3), in_days(10)), Some(in_days(3)));
    assert_eq!(ends(in_days(10), in_days(3)), Some(in_days(3)));
    // Another trusted authority that signed nothing here does not matter.
    let (mut ours, other) = (ending(in_days(10), in_days(20)), ending(in_days(10), in_days(1)));
    ours.2 += &other.2;
    let (both, again) = (read(&ours).unwrap(), read(&ours).unwrap());
    assert_eq!(both.ends(), Some(in_days(10)));
    assert!(both.is_same(&again) && !both.is_same(&read(&other).unwrap()));
    assert!(!both.is_same(&Authentication::default()));
    // An expired certificate that the chain does not depend on: peers ignore it.
    let mut more = ending(in_days(3), in_days(10));
    more.0 += &ending(now - Duration::from_secs(60), in_days(10)).0;
    assert_eq!(read(&more).unwrap().ends(), Some(in_days(3)));
    let error = read(&ending(now - Duration::from_secs(60), in_days(10))).unwrap_err().to_string();
    assert!(error.contains("certificate.pem") && error.contains("has expired"), "{error}");
    assert_eq!(Authentication::secret_bytes(SECRET).unwrap().ends(), None);
}

fn certificate(alternative_names: Vec<rcgen::SanType>) -> Certificate {
    let key = rcgen::KeyPair::generate().unwrap();
    let mut params = rcgen::CertificateParams::default();
    params.subject_alt_names = alternative_names;
    Certificate::new(params.self_signed(&key).unwrap().der().clone())
}

#[test]
fn a_certificate_speaks_for_the_tasks_and_hosts_that_it_names_alone() {
    use rcgen::SanType::{DnsName, IpAddress, URI};
    let by_uri = certificate(vec![URI("sealane://ps0.example:2222".try_into().unwrap())]);
    assert!(by_uri.speaks_for(&task("ps0.example:2222")));
    for other in ["ps0.example:2223", "ps1.example:2222", "ps0.example.org:2222", "PS0.example:2222"] {
        assert!(!by_uri.speaks_for(&task(other)), "{other}");
    }
    assert_eq!(by_uri.names(), "sealane://ps0.example:2222");

    let by_host = certificate(vec![
        DnsName("ps0.example".try_into().unwrap()),
        DnsName("*.pool.example".try_into().unwrap()),
        IpAddress("10.0.0.1".parse().unwrap()),
        IpAddress("2001:db8::1".parse().unwrap()),
    ]);
    for its_own in ["ps0.example:1", "PS0.EXAMPLE:2", "w7.pool.example:1", "10.0.0.1:3", "[2001:db8::1]:4"] {
        assert!(by_host.speaks_for(&task(its_own)), "{its_own}");
    }
    for other in ["ps1.example:1", "pool.example:1", "a.b.pool.example:1", "10.0.0.2:3", "[2001:db8::2]:4"] {
        assert!(!by_host.speaks_for(&task(other)), "{other}");
    }
    let of_nobody = certificate(vec![]);
    assert!(!of_nobody.speaks_for(&task("ps0.example:2222")));
    assert_eq!(of_nobody.names(), "no DNS name or URI");
}
