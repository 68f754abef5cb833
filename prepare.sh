#!/bin/bash
# The first thing in a container (under tini): installs what the environment asks for, then becomes the command.
# The variables are those of the `dask` image, so that charts and scripts made for it work with this one:
#   EXTRA_APT_PACKAGES    by apt-get; the container must run as root for it (docker run --user root)
#   EXTRA_CONDA_PACKAGES  by mamba or conda where the image has one; by pip, name by name, where it has none
#   EXTRA_PIP_PACKAGES    by pip; options are allowed among them, as "s3fs --upgrade"
#   /opt/app/environment.yml  by mamba or conda; without them it is told that nobody reads it
set -e -o pipefail

say() { echo "prepare: $*" >&2; }

if [ -n "$EXTRA_APT_PACKAGES" ]; then
    if [ "$(id -u)" != 0 ]; then
        say "EXTRA_APT_PACKAGES needs root: run the container with --user root (in Kubernetes: securityContext.runAsUser: 0)," \
            "or put the packages into an image of your own, FROM this one"
        exit 1
    fi
    say "installing with apt-get: $EXTRA_APT_PACKAGES"
    apt-get update
    # shellcheck disable=SC2086
    apt-get install --yes --no-install-recommends $EXTRA_APT_PACKAGES
fi

if [ "$USE_MAMBA" = true ]; then
    conda=$(command -v mamba || command -v conda || true)
else
    conda=$(command -v conda || command -v mamba || true)
fi

environment=${PREPARE_ENVIRONMENT:-/opt/app/environment.yml}
if [ -e "$environment" ]; then
    if [ -n "$conda" ]; then
        say "installing $environment"
        "$conda" env update --file "$environment"
    else
        say "$environment is not read: this image has no conda"
    fi
fi

as_pip() { # conda's words as pip's: no channels, no answers, one = means ==
    while [ $# -gt 0 ]; do
        case $1 in
            -c | --channel) shift ;;
            -c?* | --channel=* | -y | --yes | --override-channels) ;;
            *::*) as_pip "${1##*::}" ;;
            *[=\<\>!~]=*) echo "$1" ;;
            *=*) name=${1%%=*} version=${1#*=}; echo "$name==${version%%=*}" ;; # a build's name comes behind a second =
            *) echo "$1" ;;
        esac
        shift
    done
}

if [ -n "$EXTRA_CONDA_PACKAGES" ]; then
    if [ -n "$conda" ]; then
        say "installing with $conda: $EXTRA_CONDA_PACKAGES"
        # shellcheck disable=SC2086
        "$conda" install --yes $EXTRA_CONDA_PACKAGES
    else
        # shellcheck disable=SC2086
        found=$(as_pip $EXTRA_CONDA_PACKAGES)
        say "this image has no conda; installing with pip instead:" $found
        # shellcheck disable=SC2086
        pip install --no-cache-dir $found
    fi
fi

if [ -n "$EXTRA_PIP_PACKAGES" ]; then
    say "installing with pip: $EXTRA_PIP_PACKAGES"
    # shellcheck disable=SC2086
    pip install --no-cache-dir $EXTRA_PIP_PACKAGES
fi

exec "$@"
