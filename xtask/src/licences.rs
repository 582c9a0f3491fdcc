//! `cargo xtask licences`: every dependency, that of the fuzz targets included, has a licence that `deny.toml` allows.

use std::fs;
use std::process::ExitCode;

use serde::Deserialize;
use spdx::{Expression, Licensee, ParseMode};

use crate::build::workspace;
use crate::command::{cargo, output};

/// What of `deny.toml` is looked at.
#[derive(Deserialize)]
struct Policy {
    licenses: Licenses,
}

#[derive(Deserialize)]
struct Licenses {
    allow: Vec<String>,
}

/// What cargo says of a crate.
#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    license: Option<String>,
    /// None for our own.
    source: Option<String>,
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

pub(crate) fn run() -> ExitCode {
    match check() {
        Ok(count) => {
            println!("{count} dependencies, each with a licence that deny.toml allows");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn check() -> Result<usize, String> {
    let path = workspace().join("deny.toml");
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    let policy: Policy = toml::from_str(&text).map_err(|error| format!("{}: {error}", path.display()))?;
    let allowed = allowed(&policy.licenses.allow)?;
    let mut count = 0;
    let mut refused = Vec::new();
    for manifest in ["Cargo.toml", "tests/fuzz/Cargo.toml"] {
        for package in dependencies(manifest)? {
            count += 1;
            refused.extend(refusal(&package, &allowed));
        }
    }
    if refused.is_empty() { Ok(count) } else { Err(refused.join("\n       ")) }
}

fn allowed(names: &[String]) -> Result<Vec<Licensee>, String> {
    names.iter().map(|name| Licensee::parse(name).map_err(|error| format!("deny.toml: {name}: {error}"))).collect()
}

fn dependencies(manifest: &str) -> Result<Vec<Package>, String> {
    let mut cargo = cargo();
    cargo.args(["metadata", "--format-version", "1", "--all-features", "--locked", "--manifest-path"]);
    let said = output(cargo.arg(workspace().join(manifest)))?;
    let metadata: Metadata = serde_json::from_str(&said).map_err(|error| format!("cargo metadata: {error}"))?;
    Ok(metadata.packages.into_iter().filter(|package| package.source.is_some()).collect())
}

/// Why a package may not be depended on.
fn refusal(package: &Package, allowed: &[Licensee]) -> Option<String> {
    let Package { name, version, license, .. } = package;
    let Some(license) = license else { return Some(format!("{name} {version} names no licence")) };
    match Expression::parse_mode(license, ParseMode::LAX) {
        Err(error) => Some(format!("{name} {version}: {license}: {error}")),
        Ok(expression) if expression.evaluate(|wanted| allowed.iter().any(|licence| licence.satisfies(wanted))) => None,
        Ok(_) => Some(format!("{name} {version}: {license} is not among the licences that deny.toml allows")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_one_way_to_take_it_is() {
        let allowed = allowed(&["MIT".into(), "ISC".into(), "MPL-2.0".into()]).unwrap();
        let refused = |license: Option<&str>| {
            let license = license.map(str::to_owned);
            refusal(&Package { name: "a".into(), version: "1".into(), license, source: None }, &allowed)
        };
        for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "MIT AND ISC", "MPL-2.0+"] {
            assert_eq!(refused(Some(good)), None, "{good}");
        }
        for bad in [Some("GPL-3.0"), Some("MIT AND GPL-3.0"), Some("Apache-2.0"), Some("no such thing"), None] {
            assert!(refused(bad).is_some(), "{bad:?}");
        }
    }
}
