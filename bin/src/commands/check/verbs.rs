//! Whether an engine of this program could use RDMA verbs here: opens the device as a shard would, and closes it again.

use std::net::Ipv6Addr;

use sealane_transport::verbs::device::{Attributes, VerbsError};
use sealane_transport::verbs::{self, VerbsSettings};
use serde::Serialize;

use super::verdict::Finding;
use crate::settings::{Require, VERBS_BUILT_IN};

/// What an engine finds.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Verbs {
    /// This build has the feature `verbs`.
    pub(super) built_in: bool,
    /// Whether libibverbs could be loaded; `null` in a build that does not try.
    library: Option<bool>,
    /// What an engine would use; `null` if it could use nothing.
    pub(super) device: Option<Chosen>,
    /// Why that one, or why none and what to do about it.
    pub(super) reason: String,
}

/// The device that was chosen.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Chosen {
    pub(super) name: String,
    port: u8,
    gid_index: u8,
    gid: String,
    mtu_bytes: u16,
    /// Why it does not reach the memory of devices such as GPUs, which is then copied through the host's; `null` if it does.
    device_memory_copied: Option<String>,
}

impl Verbs {
    /// Opens what the settings name or imply.
    pub(super) fn look(settings: &VerbsSettings) -> Verbs {
        let opened = verbs::open(settings).map(|device| device.attributes().clone());
        Verbs::of(VERBS_BUILT_IN, library(), opened)
    }

    fn of(built_in: bool, library: Option<bool>, opened: Result<Attributes, VerbsError>) -> Verbs {
        match opened {
            Ok(Attributes { device: name, port, gid_index, gid, mtu, chosen, direct, .. }) => {
                let gid = Ipv6Addr::from(gid).to_string();
                let device =
                    Some(Chosen { name, port, gid_index, gid, mtu_bytes: mtu, device_memory_copied: direct.err() });
                Verbs { built_in, library, device, reason: chosen }
            }
            // Which step failed says nothing where there is none.
            Err(error) if !built_in => Verbs { built_in, library, device: None, reason: error.reason },
            Err(error) => Verbs { built_in, library, device: None, reason: error.to_string() },
        }
    }
}

#[cfg(feature = "verbs")]
fn library() -> Option<bool> {
    let is_missing = |error: &VerbsError| error.reason.starts_with("libibverbs");
    Some(!verbs::ibverbs::devices().is_err_and(|error| is_missing(&error)))
}

#[cfg(not(feature = "verbs"))]
fn library() -> Option<bool> {
    None
}

impl Verbs {
    /// What is to be said of them. `asked` is what `transport.require` is, `has_device` that the kernel has one.
    pub(super) fn finding(&self, require: Require, asked: &str, has_device: bool) -> Finding {
        const NAME: &str = "verbs";
        if let Some(chosen) = &self.device {
            let Chosen { name, port, gid_index, gid, mtu_bytes, device_memory_copied } = chosen;
            let mut path = format!("{name} port {port}, GID {gid_index} ({gid}), MTU {mtu_bytes}");
            if let Some(reason) = device_memory_copied {
                path += &format!(", devices' memory is copied ({reason})");
            }
            return match require {
                Require::Tcp => Finding::ok(NAME, format!("not used: {asked}; available: {path}")),
                _ => Finding::ok(NAME, format!("{path}; {}", self.reason)),
            };
        }
        let says = format!("not available: {}", self.reason);
        let remedy = match (self.built_in, self.library, has_device) {
            (false, ..) => "cargo install --path bin --locked --features verbs",
            (true, Some(false), _) => "sudo apt-get install libibverbs1 ibverbs-providers",
            (true, _, false) => "sudo modprobe mlx5_ib  # or your card's driver",
            (true, _, true) => "rdma link show",
        };
        match (require, has_device) {
            (Require::Verbs, _) => Finding::fails(NAME, format!("{asked}, but {}", self.reason), remedy),
            (Require::Auto, true) => Finding::better(NAME, says, remedy),
            (Require::Auto, false) => Finding::ok(NAME, format!("{says}; links between hosts use TCP")),
            (Require::Tcp, _) => Finding::ok(NAME, format!("not used: {asked}")),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::verdict::Verdict;
    use super::*;

    /// A device that was opened.
    pub(in super::super) fn found() -> Verbs {
        let gid = std::net::Ipv4Addr::new(10, 9, 0, 1).to_ipv6_mapped().octets();
        let attributes = Attributes {
            device: "rxe0".to_owned(),
            port: 1,
            gid_index: 1,
            gid,
            lid: 0,
            mtu: 1024,
            reads: 16,
            has_windows: true,
            work_bytes_max: 1 << 30,
            send_depth: 128,
            receive_depth: 1024,
            completion_depth: 5120,
            chosen: "device rxe0 (the first with an active port)".to_owned(),
            direct: Err("ibv_reg_dmabuf_mr: not supported".to_owned()),
        };
        Verbs::of(true, Some(true), Ok(attributes))
    }

    /// A build with verbs on a host without them.
    pub(in super::super) fn missing() -> Verbs {
        Verbs::of(true, Some(false), Err(VerbsError::new("ibv_get_device_list", "libibverbs.so.1 could not be loaded")))
    }

    #[test]
    fn what_was_chosen_is_told_with_the_reason() {
        let found = found();
        let json = serde_json::to_value(&found).unwrap();
        assert_eq!((&json["built_in"], &json["library"]), (&true.into(), &true.into()));
        let device = &json["device"];
        assert_eq!((&device["name"], &device["port"]), (&"rxe0".into(), &1.into()));
        assert_eq!((&device["gid_index"], &device["gid"]), (&1.into(), &"::ffff:10.9.0.1".into()));
        assert_eq!(device["mtu_bytes"], 1024);
        let finding = found.finding(Require::Auto, "", true);
        assert_eq!(
            (finding.verdict, finding.says.as_str()),
            (
                Verdict::Ok,
                "rxe0 port 1, GID 1 (::ffff:10.9.0.1), MTU 1024, devices' memory is copied (ibv_reg_dmabuf_mr: not \
                 supported); device rxe0 (the first with an active port)"
            )
        );
        assert_eq!(device["device_memory_copied"], "ibv_reg_dmabuf_mr: not supported");
        let unused = found.finding(Require::Tcp, "transport.require is tcp (--set)", true);
        assert!(unused.says.starts_with("not used: transport.require is tcp (--set); "), "{}", unused.says);
    }

    #[test]
    fn what_is_missing_is_told_with_the_step() {
        let missing = missing();
        let finding = missing.finding(Require::Auto, "", true);
        assert_eq!(finding.verdict, Verdict::CouldBeBetter);
        assert_eq!(finding.says, "not available: ibv_get_device_list: libibverbs.so.1 could not be loaded");
        assert_eq!(finding.remedy(), "sudo apt-get install libibverbs1 ibverbs-providers");
        let required = missing.finding(Require::Verbs, "transport.require is verbs (--set)", false);
        assert_eq!(required.verdict, Verdict::WillNotWork);
        assert!(required.says.starts_with("transport.require is verbs (--set), but ibv_"), "{}", required.says);
        assert_eq!(missing.finding(Require::Tcp, "", true).verdict, Verdict::Ok);
        assert_eq!(serde_json::to_value(&missing).unwrap()["device"], serde_json::Value::Null);
        let without = Verbs::of(false, None, Err(VerbsError::new("open the device", "this build has none")));
        let finding = without.finding(Require::Auto, "", false);
        let says = "not available: this build has none; links between hosts use TCP";
        assert_eq!((finding.verdict, finding.says.as_str()), (Verdict::Ok, says));
        let finding = without.finding(Require::Auto, "", true);
        assert_eq!(finding.remedy(), "cargo install --path bin --locked --features verbs");
    }

    #[test]
    fn looking_always_gives_a_reason() {
        let verbs = Verbs::look(&VerbsSettings::default());
        assert_eq!(verbs.built_in, VERBS_BUILT_IN);
        assert_eq!(verbs.library.is_some(), VERBS_BUILT_IN);
        assert!(!verbs.reason.is_empty());
        if !VERBS_BUILT_IN {
            assert!(verbs.reason.contains("--features verbs"), "{}", verbs.reason);
        }
        if verbs.library == Some(false) {
            assert!(verbs.reason.contains("libibverbs"), "{}", verbs.reason);
        }
    }
}
