//! The machine as a report describes it.

use std::{fs, io};

use nix::sys::utsname::uname;
use serde::{Deserialize, Serialize};

/// What a report says of the machine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// CPUs that this process may use.
    pub cpus: usize,
    /// The CPU's name as the kernel knows it.
    pub cpu_model: String,
    /// The kernel's release.
    pub kernel: String,
    /// CPUs that the consumer and the producer are pinned to; empty when there is only one.
    pub pinned: Vec<usize>,
}

impl Machine {
    /// Describes the machine; `pinned` are the CPUs of the run.
    ///
    /// # Errors
    /// The kernel does not report it.
    pub fn look(allowed: &[usize], pinned: &[usize]) -> io::Result<Self> {
        let names = uname()?;
        let cpu_info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        Ok(Self {
            cpus: allowed.len(),
            cpu_model: cpu_model(&cpu_info),
            kernel: names.release().to_string_lossy().into_owned(),
            pinned: pinned.to_vec(),
        })
    }
}

fn cpu_model(cpu_info: &str) -> String {
    cpu_info
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(field, _)| field.trim() == "model name")
        .map_or_else(|| "unknown".to_owned(), |(_, model)| model.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_is_read_from_the_first_processor() {
        let text = "processor\t: 0\nmodel name\t: Abacus 9\nprocessor\t: 1\nmodel name\t: Other\n";
        assert_eq!(cpu_model(text), "Abacus 9");
        assert_eq!(cpu_model(""), "unknown");
        assert!(!Machine::look(&[0, 1], &[]).unwrap().kernel.is_empty());
    }
}
