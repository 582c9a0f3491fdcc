//! `cargo xtask licences`: checks that every dependency, including those of the fuzz targets, has a licence that `deny.toml`
//! allows.

use std::fs;

use serde_json::Value;
use spdx::{Expression, Licensee, ParseMode};

use crate::Outcome;
use crate::build::workspace;
use crate::command::{cargo, output};

pub(crate) fn run() -> Outcome {
    let told = |error: &dyn std::fmt::Display| format!("deny.toml: {error}");
    let text = fs::read_to_string(workspace().join("deny.toml")).map_err(|error| told(&error))?;
    let policy: toml::Table = toml::from_str(&text).map_err(|error| told(&error))?;
    let names = policy["licenses"]["allow"].as_array().into_iter().flatten().filter_map(|name| name.as_str());
    let allowed = names.map(Licensee::parse).collect::<Result<Vec<_>, _>>().map_err(|error| told(&error))?;
    let mut packages = dependencies("Cargo.toml")?;
    packages.extend(dependencies("tests/fuzz/Cargo.toml")?);
    let refused =
        packages.iter().filter(|package| !is_allowed(package["license"].as_str().unwrap_or("none"), &allowed));
    let refused: Vec<_> = refused.map(|package| format!("{} {}", package["name"], package["license"])).collect();
    if !refused.is_empty() {
        return Err(format!("deny.toml does not allow what these have: {}", refused.join(", ")));
    }
    println!("{} dependencies, each with a licence that deny.toml allows", packages.len());
    Ok(true)
}

/// Cargo's metadata of the crates that are not our own.
fn dependencies(manifest: &str) -> Result<Vec<Value>, String> {
    let mut cargo = cargo();
    cargo.args(["metadata", "--format-version", "1", "--all-features", "--locked", "--manifest-path"]);
    let said = output(cargo.arg(workspace().join(manifest)))?;
    let metadata: Value = serde_json::from_str(&said).map_err(|error| format!("cargo metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata names no packages")?;
    Ok(packages.iter().filter(|package| !package["source"].is_null()).cloned().collect())
}

/// Whether one alternative of a licence expression is allowed.
fn is_allowed(license: &str, allowed: &[Licensee]) -> bool {
    let expression = Expression::parse_mode(license, ParseMode::LAX);
    expression.is_ok_and(|expression| expression.evaluate(|wanted| allowed.iter().any(|one| one.satisfies(wanted))))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_licence_is_allowed_if_one_way_to_take_it_is() {
        let allowed = ["MIT", "ISC", "MPL-2.0"].map(|name| Licensee::parse(name).unwrap());
        for good in ["MIT", "MIT/Apache-2.0", "GPL-3.0 OR MIT", "MIT AND ISC", "MPL-2.0+"] {
            assert!(is_allowed(good, &allowed), "{good}");
        }
        for bad in ["GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "no such thing", "none"] {
            assert!(!is_allowed(bad, &allowed), "{bad}");
        }
    }
}
