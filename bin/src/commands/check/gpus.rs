//! Whether programs here can have tensors in the memory of GPUs: asks the CUDA driver, if there is one.

use serde::Serialize;

use super::verdict::Finding;

/// What the CUDA driver says.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub(super) struct Gpus {
    /// The devices' names, by number.
    devices: Vec<String>,
    /// Why there are none; `null` where the driver works.
    reason: Option<String>,
}

impl Gpus {
    pub(super) fn look() -> Gpus {
        match sealane::cuda::devices() {
            Ok(devices) => Gpus { devices, reason: None },
            Err(error) => Gpus { devices: Vec::new(), reason: Some(error.to_string()) },
        }
    }

    /// What is to be said of them. Most hosts have none, and need none.
    pub(super) fn finding(&self) -> Finding {
        let says = match (&self.reason, &self.devices[..]) {
            (Some(reason), _) => format!("none: {reason}"),
            (None, []) => "none, though there is a CUDA driver".to_owned(),
            (None, devices) => {
                format!("{}; tensors there are copied through pinned memory (experimental)", devices.join(", "))
            }
        };
        Finding::ok("GPUs", says)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_without_gpus_is_well_and_one_with_them_has_an_experiment() {
        let of = |devices: &[&str], reason: Option<&str>| {
            let devices = devices.iter().map(|name| (*name).to_owned()).collect();
            Gpus { devices, reason: reason.map(str::to_owned) }.finding().says
        };
        assert_eq!(of(&[], Some("no driver")), "none: no driver");
        assert_eq!(of(&[], None), "none, though there is a CUDA driver");
        let both = "A, B; tensors there are copied through pinned memory (experimental)";
        assert_eq!(of(&["A", "B"], None), both);
    }
}
