#!/bin/bash
# Entry point of the container, run by tini: install the packages that the environment names, then run the command.
# The variables are those of the `dask` image, so that charts and scripts written for it work with this image:
#   EXTRA_APT_PACKAGES        installed by apt-get; the container must run as root (docker run --user root)
#   EXTRA_CONDA_PACKAGES      installed by mamba or conda if the image has one, otherwise by pip
#   EXTRA_PIP_PACKAGES        installed by pip; may contain options, for example "s3fs --upgrade"
#   /opt/app/environment.yml  installed by mamba or conda; ignored with a warning if the image has neither
set -e -o pipefail

log() { echo "prepare: $*" >&2; }

if [ -n "$EXTRA_APT_PACKAGES" ]; then
    if [ "$(id -u)" != 0 ]; then
        log "EXTRA_APT_PACKAGES needs root: run the container with --user root (in Kubernetes: securityContext.runAsUser: 0)," \
            "or build an image FROM this one that contains the packages"
        exit 1
    fi
    log "installing with apt-get: $EXTRA_APT_PACKAGES"
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
        log "installing $environment"
        "$conda" env update --file "$environment"
    else
        log "ignoring $environment: this image has no conda; use EXTRA_PIP_PACKAGES"
    fi
fi

# Print conda's package arguments as arguments of pip: without channels and --yes, and with == for =.
pip_arguments() {
    while [ $# -gt 0 ]; do
        case $1 in
            -c | --channel) shift ;;
            -c?* | --channel=* | -y | --yes | --override-channels) ;;
            *::*) pip_arguments "${1##*::}" ;;
            *[=\<\>!~]=*) echo "$1" ;;
            *=*) name=${1%%=*} version=${1#*=}; echo "$name==${version%%=*}" ;; # name=version=build
            *) echo "$1" ;;
        esac
        shift
    done
}

if [ -n "$EXTRA_CONDA_PACKAGES" ]; then
    if [ -n "$conda" ]; then
        log "installing with $conda: $EXTRA_CONDA_PACKAGES"
        # shellcheck disable=SC2086
        "$conda" install --yes $EXTRA_CONDA_PACKAGES
    else
        # shellcheck disable=SC2086
        packages=$(pip_arguments $EXTRA_CONDA_PACKAGES)
        log "this image has no conda; installing with pip instead:" $packages
        # shellcheck disable=SC2086
        pip install --no-cache-dir $packages
    fi
fi

if [ -n "$EXTRA_PIP_PACKAGES" ]; then
    log "installing with pip: $EXTRA_PIP_PACKAGES"
    # shellcheck disable=SC2086
    pip install --no-cache-dir $EXTRA_PIP_PACKAGES
fi

exec "$@"
