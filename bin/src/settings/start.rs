//! Turns the settings into those that the runtime starts with.

use sealane_runtime::{Pin, Polling, RuntimeError, RuntimeSettings, Wanted, claim_cpus};

use super::Runtime;

impl Runtime {
    /// What a runtime that serves an endpoint map of so many tasks starts with.
    ///
    /// # Errors
    ///
    /// `pin` is true and fewer CPUs are free than there are shards.
    pub fn start_settings(&self, tasks: usize) -> Result<RuntimeSettings, RuntimeError> {
        let shards = self.shards_for(tasks);
        Ok(RuntimeSettings {
            shards,
            polling: self.polling(),
            pin: match self.pin.value {
                Some(false) => Pin::Off,
                None => Pin::IfFree,
                Some(true) => Pin::Cpus(self.free_cpus(shards)?),
            },
            claim_directory: self.claim_directory.value.clone(),
            mailbox_slots: self.mailbox_slots.value,
            stall_report: self.stall_report.value,
            ..RuntimeSettings::default()
        })
    }

    fn polling(&self) -> Polling {
        if self.polling.value {
            Polling::Spin
        } else if self.idle_spin.value.is_zero() {
            Polling::Park
        } else {
            Polling::SpinThenPark { idle_spin: self.idle_spin.value }
        }
    }

    /// Claims so many CPUs and lets them go again, for the runtime to claim by number. Should
    /// another daemon take one in between, the start fails and names it.
    fn free_cpus(&self, count: usize) -> Result<Vec<usize>, RuntimeError> {
        let claims = claim_cpus(&self.claim_directory.value, Wanted::Any(count))?;
        Ok(claims.iter().map(|claim| claim.cpu()).collect())
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use super::super::{Environment, Override, Settings, Sources};
    use super::*;

    fn runtime(directory: &Path, pairs: &[(&str, &str)]) -> Runtime {
        let claims = directory.join("claims");
        let claims = ("runtime.claim_directory", claims.to_str().unwrap());
        let pairs = pairs.iter().copied().chain([claims]);
        let overrides: Vec<_> = pairs.map(|(name, text)| Override::new("--set", name, text)).collect();
        let sources = Sources {
            environment: &Environment::default(),
            working_directory: directory,
            config: None,
            role: None,
            overrides: &overrides,
        };
        Settings::load(&sources).unwrap().runtime
    }

    #[test]
    fn polling_follows_its_two_settings() {
        let directory = tempfile::tempdir().unwrap();
        for (pairs, polling) in [
            (&[][..], Polling::SpinThenPark { idle_spin: Duration::from_micros(200) }),
            (&[("runtime.polling", "1")], Polling::Spin),
            (&[("runtime.idle_spin_us", "0")], Polling::Park),
        ] {
            let settings = runtime(directory.path(), pairs).start_settings(1).unwrap();
            assert_eq!(settings.polling, polling);
            assert_eq!((settings.pin, settings.mailbox_slots), (Pin::IfFree, 4096));
        }
    }

    #[test]
    fn pinning_is_off_or_takes_free_cpus_or_fails() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path();
        let off = runtime(directory, &[("runtime.pin", "no")]).start_settings(1);
        assert_eq!(off.unwrap().pin, Pin::Off);

        let one = runtime(directory, &[("runtime.pin", "yes")]).start_settings(1).unwrap();
        let Pin::Cpus(cpus) = &one.pin else {
            panic!("{:?}", one.pin);
        };
        claim_cpus(&one.claim_directory, Wanted::These(cpus)).unwrap();

        let many = [("runtime.pin", "yes"), ("runtime.shards", "1024")];
        let error = runtime(directory, &many).start_settings(1).unwrap_err();
        assert!(matches!(error, RuntimeError::TooFewCpus { wanted: 1024, .. }), "{error}");
    }
}
