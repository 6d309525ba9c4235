#!/usr/bin/env perl
# Runs one job: payload on standard input, result on standard output.
use strict;
use warnings;
use FindBin;
use lib $FindBin::Bin;
use IO::Handle;
use JSON::PP;
use Scalar::Util qw(blessed);
use Files;

use constant { RETRY => 75, GIVE_UP => 64 };
my $json = JSON::PP->new->utf8->allow_nonref->canonical;

open my $result, '>&', \*STDOUT or die "standard output: $!";
open STDOUT, '>&', \*STDERR or die "standard error: $!";    # what job code prints is no part of the result
open my $reports, '>&=', 3 or die "descriptor 3: $!";
$reports->autoflush;

binmode STDIN;
my $payload = do { local $/; <STDIN> } // '';
$payload = eval { $json->decode($payload) } // $payload;    # a byte string if it is no JSON
my $klass = $ENV{GEARTRAIN_JOB_KLASS};
my $job = { jid => $ENV{GEARTRAIN_JOB_JID}, progress => sub { print {$reports} "progress $_[0]/$_[1]\n" } };

eval {
    my $run = $Files::KLASSES{$klass} or Files::give_up("there is no klass $klass here");
    print {$result} $json->encode($run->($payload, $job));
    close $result or die "cannot write the result: $!\n";
    1;
} or do {
    my $gave_up = blessed $@ && $@->isa('GiveUp');
    print STDERR $gave_up ? "$@->{message}\n" : $@;
    exit($gave_up ? GIVE_UP : RETRY);
};
