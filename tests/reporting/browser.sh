#!/bin/sh
# What the browser tests need, fetched where it is missing: Debian's chromium, and axe-core from npm.
# Never fails: where something cannot be had, the tests that need it are skipped and say so.
set -u
cache="${1:-.venv/browser}"
axe_version=4.14.0

if ! command -v chromium >/dev/null 2>&1 && ! command -v chromium-browser >/dev/null 2>&1 && ! command -v google-chrome >/dev/null 2>&1; then
  as_root=""
  [ "$(id -u)" = 0 ] || as_root="sudo -n"
  if command -v apt-get >/dev/null 2>&1; then
    echo "installing chromium for the browser tests"
    install="$as_root apt-get install -y -qq --no-install-recommends chromium"
    DEBIAN_FRONTEND=noninteractive $install >/dev/null 2>&1 ||
      { $as_root apt-get update -qq >/dev/null 2>&1 && DEBIAN_FRONTEND=noninteractive $install >/dev/null 2>&1; } ||
      echo "chromium could not be installed: the browser tests will be skipped"
  else
    echo "there is no chromium and no apt-get to install it: the browser tests will be skipped"
  fi
fi

if [ ! -s "$cache/axe.min.js" ]; then
  if command -v npm >/dev/null 2>&1; then
    mkdir -p "$cache"
    work=$(mktemp -d)
    (cd "$work" && npm pack --silent "axe-core@$axe_version" >/dev/null 2>&1 && tar -xzf axe-core-*.tgz package/axe.min.js) &&
      mv "$work/package/axe.min.js" "$cache/axe.min.js" ||
      echo "axe-core could not be fetched from npm: the accessibility test will be skipped"
    rm -rf "$work"
  else
    echo "there is no npm to fetch axe-core with: the accessibility test will be skipped"
  fi
fi
exit 0
